"""DINO, self-distillation without labels, for conf/experiment/dino.yaml.

After Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (arXiv:2104.14294), and the
settings of main_dino.py in github.com/facebookresearch/dino.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any, cast

import lightning
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from .checks import ConfigError
from .schedules import NO_END


class Dino(lightning.LightningModule):
    """A student learns to predict, from each view, what its own moving average sees in the large views.

    A batch has the views of one size as ``[n, B, 3, H, W]``, or a list of these for several sizes. The first
    of them are the large views, the only ones of the teacher.

    Args:
        net: network of features [N, C] that takes all sizes of views, such as a ViT without a head.
        optimizer: called with the groups of parameters. Its learning rate rises over ``warmup_epochs`` and
            falls with a cosine to ``end_lr``; its weight decay becomes ``end_decay`` with a cosine.
        outputs: size of the head's output. ``normalise_last``: fix the norms of its last layer's rows.
        momentum: of the teacher at the beginning; 1 at the end.
        teacher_temperature: at the beginning and after ``temperature_epochs``.
        center_momentum: of the mean that is subtracted from the teacher's outputs.
        clip: largest norm of the gradient of each parameter; 0 disables it.
        freeze_epochs: epochs in which the last layer stays as it is.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        *,
        outputs: int = 65536,
        normalise_last: bool = True,
        momentum: float = 0.996,
        student_temperature: float = 0.1,
        teacher_temperature: Sequence[float] = (0.04, 0.04),
        temperature_epochs: int = 0,
        center_momentum: float = 0.9,
        warmup_epochs: int = 10,
        end_lr: float = 1e-6,
        end_decay: float = 0.4,
        clip: float = 3.0,
        freeze_epochs: int = 1,
    ) -> None:
        super().__init__()
        head = Head(cast(int, net.num_features), outputs, normalise_last)
        self.student = nn.Sequential(net, head)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.center: Tensor
        self.register_buffer("center", torch.zeros(1, outputs))
        self.optimizer = optimizer
        self.momentum = momentum
        self.student_temperature = student_temperature
        self.teacher_temperature = teacher_temperature
        self.temperature_epochs = temperature_epochs
        self.center_momentum = center_momentum
        self.warmup_epochs = warmup_epochs
        self.end_lr = end_lr
        self.end_decay = end_decay
        self.clip = clip
        self.freeze_epochs = freeze_epochs

    def train(self, mode: bool = True) -> Dino:
        """Set the student's mode; the teacher has no stochastic depth."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Features of the teacher's network, which are those to use later."""
        features: Tensor = self.teacher[0](images)
        return features

    def training_step(self, batch: Sequence[Any], _: int) -> Tensor:
        """Cross entropy of the student's views with the teacher's, of all pairs of different views."""
        views = batch[0] if isinstance(batch[0], list) else [batch[0]]
        large, count = views[0], sum(len(part) for part in views)
        features = torch.cat([self.student[0](part.flatten(0, 1)) for part in views])
        students = (self.student[1](features) / self.student_temperature).chunk(count)
        with torch.no_grad():
            outputs = self.teacher(large.flatten(0, 1))
            teachers = ((outputs - self.center) / self._temperature).softmax(-1).chunk(len(large))
        pairs = [(t, s) for i, t in enumerate(teachers) for j, s in enumerate(students) if i != j]
        loss = torch.stack([-(t * s.log_softmax(-1)).sum(-1).mean() for t, s in pairs]).mean()
        mean = self.trainer.strategy.reduce(outputs.mean(0, keepdim=True), reduce_op="mean")
        self.center.lerp_(cast(Tensor, mean).to(self.center), 1 - self.center_momentum)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Weight decay is for matrices alone, not for biases and norms."""
        parts = [part for part in self.student.parameters() if part.requires_grad]
        groups = [[p for p in parts if p.ndim > 1], [p for p in parts if p.ndim < 2]]
        optimizer = self.optimizer([{"params": groups[0]}, {"params": groups[1], "weight_decay": 0.0}])
        self._start = [optimizer.param_groups[0][name] for name in ("lr", "weight_decay")]
        return optimizer

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        """Set learning rate, weight decay and momentum of this step."""
        epochs, (lr, decay) = self.trainer.max_epochs, self._start
        if not epochs or epochs < 1:
            raise ValueError(
                f"max_epochs={epochs} of the Trainer must be at least 1: the schedules end with it"
            )
        batches = self.trainer.num_training_batches
        if batches == math.inf:
            raise ConfigError(NO_END)
        each = math.ceil(batches / self.trainer.accumulate_grad_batches)
        step, steps, rise = self.global_step, epochs * each, min(self.warmup_epochs, epochs) * each
        groups = self.trainer.optimizers[0].param_groups
        for group in groups:
            if step < rise:
                group["lr"] = lr * step / max(1, rise - 1)
            else:
                group["lr"] = _cosine(lr, self.end_lr, (step - rise) / max(1, steps - rise))
        groups[0]["weight_decay"] = _cosine(decay, self.end_decay, step / steps)
        self._now = _cosine(self.momentum, 1.0, step / steps)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip each parameter's gradient, and keep the last layer as it is in the first epochs."""
        for parameter in self.student.parameters() if self.clip else ():
            if parameter.grad is not None:
                nn.utils.clip_grad_norm_(parameter, self.clip)
        if self.current_epoch < self.freeze_epochs:
            for parameter in cast(Head, self.student[1]).last.parameters():
                parameter.grad = None

    def optimizer_step(self, *args: Any, **options: Any) -> None:
        """Make the step, then move the teacher towards the student: checkpoints have both, or none."""
        super().optimizer_step(*args, **options)
        self._move_teacher()

    @torch.no_grad()
    def _move_teacher(self) -> None:
        for mean, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mean.lerp_(new, 1 - self._now)

    @property
    def _temperature(self) -> float:
        low, high = self.teacher_temperature
        last = max(1, self.temperature_epochs - 1)
        return low + (high - low) * min(1.0, self.current_epoch / last) if self.temperature_epochs else high


class Head(nn.Module):
    """Three layers, a normalised bottleneck, and a last layer whose rows are normalised."""

    def __init__(
        self, features: int, outputs: int, normalise_last: bool, hidden: int = 2048, neck: int = 256
    ) -> None:
        super().__init__()
        sizes = [features, hidden, hidden, neck]
        layers = [nn.Linear(a, b) for a, b in pairwise(sizes)]
        for layer in layers:
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.layers = nn.Sequential(
            *chain.from_iterable((layer, nn.GELU()) for layer in layers[:-1]), layers[-1]
        )
        self.last = weight_norm(nn.Linear(neck, outputs, bias=False))
        norms = self.last.parametrizations.weight.original0
        norms.data.fill_(1.0)
        norms.requires_grad_(not normalise_last)

    def forward(self, features: Tensor) -> Tensor:
        """Return outputs [N, outputs] of features [N, C]."""
        outputs: Tensor = self.last(nn.functional.normalize(self.layers(features), dim=-1))
        return outputs


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2

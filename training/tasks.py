"""Loss, metric and predictions for labels that are not one class: several classes per image, and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import lightning
import tarpeg
import torch
import torchmetrics
from torch import Tensor, nn
from torchmetrics.classification import MultilabelAveragePrecision
from torchmetrics.functional.classification import multilabel_average_precision
from torchmetrics.utilities.data import dim_zero_cat

_NAMES = {"number": "numbers", "classes": "several classes per image"}
_LOSSES = {"number": nn.SmoothL1Loss, "classes": nn.BCEWithLogitsLoss}
_STATE = "label_task"  # in a checkpoint
_UNKNOWN = -1  # truth of a label that is missing


class _Precision(MultilabelAveragePrecision):
    """The mean over the classes that have labels: torchmetrics fails for one without any."""

    def compute(self) -> Any:
        scores, truth = dim_zero_cat(self.preds), dim_zero_cat(self.target)
        known = (truth != _UNKNOWN).any(dim=0)
        if not known.any():
            return scores.new_tensor(torch.nan)
        settings: Any = {"ignore_index": _UNKNOWN, "validate_args": False}
        return multilabel_average_precision(scores[:, known], truth[:, known], int(known.sum()), **settings)


class Task(nn.Module):
    """What a network learns from labels float32 ``[B]`` or ``[B, outputs]``; NaN for a missing one.

    Args:
        kind: "number" or "classes", see ``tarpeg.Label``.
        outputs: numbers that the network returns per image.
        names: of the outputs.
        criterion: loss of scores and labels; None for smooth L1 of numbers, binary cross entropy of classes.
    """

    def __init__(
        self, kind: str, outputs: int, names: Sequence[str] = (), criterion: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.kind, self.outputs = kind, outputs
        word = "value" if kind == "number" else "class"
        numbered = [word] if outputs == 1 else [f"{word}{number}" for number in range(outputs)]
        self.names = [*names] or numbered
        self.criterion = criterion or _LOSSES[kind]()
        self.metric: Any = (
            torchmetrics.MeanAbsoluteError()
            if kind == "number"
            else _Precision(outputs, ignore_index=_UNKNOWN, validate_args=False)  # of one class, too
        )

    @property
    def score(self) -> tuple[str, str]:
        """Name of the metric, and whether the best is its "min" or "max"."""
        return ("val/mae", "min") if self.kind == "number" else ("val/map", "max")

    def line(self) -> str:
        """Return what was chosen, in one line."""
        loss = type(self.criterion).__name__
        return (
            f"labels: {_NAMES[self.kind]}, {self.outputs} per image; loss {loss} (model.loss= for another), "
            f"metric {self.score[0]}"
        )

    def loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the labels that are there."""
        scores = scores.reshape(labels.shape)
        known = ~labels.isnan()
        if known.all():
            whole: Tensor = self.criterion(scores, labels)
            return whole
        if not known.any():
            return scores.sum() * 0  # which has a gradient
        reduction = getattr(self.criterion, "reduction", None)
        if reduction in ("mean", "sum"):
            each = copy(self.criterion)
            each.reduction = "none"
            losses: Tensor = each(scores, labels.nan_to_num())  # in columns, for weights of outputs
            if losses.shape == labels.shape:
                return losses[known].mean() if reduction == "mean" else losses[known].sum()
        part: Tensor = self.criterion(scores[known], labels[known])
        return part

    def update(self, scores: Tensor, labels: Tensor, metric: Any = None) -> None:
        """Count a batch of the validation in ``self.metric``, or in a copy of it."""
        metric = self.metric if metric is None else metric
        scores = scores.detach().float().reshape(labels.shape)
        known = ~labels.isnan()
        if self.kind == "number":
            if known.any():
                metric.update(scores[known], labels[known])
            return
        truth = torch.where(known, (labels > 0.5).long(), _UNKNOWN)
        # torchmetrics takes the scores of a batch for probabilities if all of them happen to be in 0..1.
        metric.update(scores.sigmoid().reshape(-1, self.outputs), truth.reshape(-1, self.outputs))

    def rows(self, keys: Sequence[str], scores: Tensor) -> list[tuple[Any, ...]]:
        """Return a row of a table per image: its key, then numbers, or the probability of each class."""
        found = scores.float() if self.kind == "number" else scores.float().sigmoid()
        return [(key, *row) for key, row in zip(keys, found.reshape(len(keys), -1).tolist(), strict=True)]

    def watch(self, trainer: lightning.Trainer) -> None:
        """Have checkpoints of the best accuracy be those of the best metric."""
        name, mode = self.score
        for callback in trainer.checkpoint_callbacks:
            is_best = getattr(callback, "monitor", None) == "val/accuracy"
            if is_best and isinstance(callback, lightning.pytorch.callbacks.ModelCheckpoint):
                limit = torch.tensor(torch.inf if mode == "min" else -torch.inf)
                callback.monitor, callback.mode, callback.kth_value = name, mode, limit

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Store kind and names, for predictions, whose data have no labels."""
        checkpoint[_STATE] = {"kind": self.kind, "outputs": self.outputs, "names": self.names}


def task_of(data: tarpeg.ShardDataModule, criterion: nn.Module | None) -> Task | None:
    """Return the task of the labels of train, or of the first other split; None for one class per image."""
    for name, split in data.splits.items():
        if split is None or name == "predict" or split.targets is not None:
            continue
        labels = split.label_reader(None if split.streaming else data.samples(name))
        if labels is None or labels.form.kind not in _NAMES:
            return None
        names = labels.form.classes
        if names is None and not isinstance(labels.form.label.place, str):
            names = list(labels.form.label.place) if labels.form.width is None else None
        return Task(labels.form.kind, labels.form.outputs or 1, names or (), criterion)
    return None


def stored_task(checkpoint: dict[str, Any]) -> Task | None:
    """Return the task that ``save`` stored; None if there is none."""
    stored = checkpoint.get(_STATE)
    return None if stored is None else Task(stored["kind"], stored["outputs"], stored["names"])


def metrics_of_sets(metric: torchmetrics.Metric, present: nn.ModuleList, trainer: lightning.Trainer) -> Any:
    """Return a copy of a metric for each of several validation sets; those that are there stay.

    Lightning keeps the names of metrics.
    """
    sets = validation_sets(trainer)
    is_same = len(present) == len(sets) and all(type(each) is type(metric) for each in present)
    return present if is_same else nn.ModuleList(metric.clone() for _ in sets)


def validation_sets(trainer: lightning.Trainer) -> list[str]:
    """Return the names of several validation sets, such as "val/clean", in order; [] for a single one."""
    splits: dict[str, Any] = getattr(getattr(trainer, "datamodule", None), "splits", {})
    return [name for name in splits if name.startswith("val/")]

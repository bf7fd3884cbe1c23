"""A LightningModule around any network: loss, metric, weight decay and schedule of published recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import lightning
import tarpeg
import torch
import torchmetrics
from torch import Tensor, nn

from .checks import ConfigError
from .reports import show
from .schedules import by_epochs
from .tasks import Task, metrics_of_sets, stored_task, task_of, validation_sets

_MISSING = -1  # a label, of tarpeg.Label(optional=True)


class Classifier(lightning.LightningModule):
    """Loss and accuracy around a classifier; for other labels, loss and metric of their ``Task``.

    Args:
        net: from images ``[B, C, H, W]`` to scores ``[B, classes]``.
        optimizer: called with the groups of parameters.
        classes: number of classes; labels are 0 to classes - 1.
        criterion: loss of scores and labels, or of shares of labels if they are mixed; None for cross
            entropy, without labels -1, which are missing, or that of the ``Task``. Validation always measures
            cross entropy, or the loss of the ``Task``.
        no_decay: parameters without weight decay: "norms" (of normalisation layers, as in torchvision's
            references), "vectors" (these, biases, and ``no_weight_decay()`` of the network, as in timm), or
            None.
        schedule: per epoch, a linear warm-up of ``warmup`` epochs from ``start``, then a cosine to ``end``,
            both as fractions of the optimiser's learning rate; None for a constant rate.

    Raises:
        ConfigError: for an unknown ``no_decay`` or ``schedule``.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        classes: int,
        criterion: nn.Module | None = None,
        no_decay: str | None = None,
        schedule: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if no_decay not in (None, "norms", "vectors"):
            raise ConfigError(f"model.no_decay={no_decay} must be norms, vectors or null")
        if schedule is not None and set(schedule) != {"warmup", "start", "end"}:
            raise ConfigError(f"model.schedule={dict(schedule)} must have warmup, start and end")
        self.net = net
        self.optimizer = optimizer
        self.num_classes = classes
        self._given = criterion
        self.task: Task | None = None
        self.criterion = criterion or nn.CrossEntropyLoss(ignore_index=_MISSING)
        self.no_decay = no_decay
        self.schedule = schedule
        # A single output is a number, whose task has a metric of its own.
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(
            max(classes, 2), average="micro", ignore_index=_MISSING
        )
        self.loss = torchmetrics.MeanMetric()
        self.metrics: Any = nn.ModuleList()  # of each of several validation sets

    def setup(self, stage: str) -> None:
        """Choose loss and metric for the labels. ConfigError if the network has another number of outputs."""
        if self.task is None and stage != "predict":
            self.task = task_of(self._data, self._given)
        task = self.task
        if stage in ("fit", "validate"):
            metric = self.accuracy if task is None else task.metric
            self.metrics = metrics_of_sets(metric, self.metrics, self.trainer)
        if task is None:
            if self.num_classes == 1 and stage != "predict":
                raise ConfigError(
                    "model.net.num_classes=1: a network of one class has nothing to learn; give the number "
                    "of classes, or labels that are numbers (kind: number)"
                )
            return
        if task.outputs != self.num_classes:
            numbers = f"{task.outputs} number{'s' * (task.outputs != 1)}"
            raise ConfigError(
                f"labels have {numbers} per image: give model.net.num_classes={task.outputs}, which is "
                f"{self.num_classes}"
            )
        task.watch(self.trainer)
        if self.trainer.is_global_zero:
            show(task.line())

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the task, which predictions need."""
        if self.task is not None:
            self.task.save(checkpoint)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the task."""
        if self.task is None:
            self.task = stored_task(checkpoint)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of ``predict_step``."""
        return ["key", *(("class", "probability") if self.task is None else self.task.names)]

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``[B, classes]``."""
        scores: Tensor = self.net(images)
        return scores

    def on_before_batch_transfer(self, batch: Any, _: int) -> Any:
        """Raise ConfigError for labels out of range: a GPU has an assertion without a message."""
        if self.trainer.predicting or self.task is not None:  # without labels, or without classes
            return batch
        labels = batch[1]
        if labels.ndim > 1 and not labels.is_floating_point():  # those of Mix are shares
            raise ConfigError(
                f"labels have {labels.shape[1]} integers per image, and an image has one class here: give "
                "target: {_target_: tarpeg.Label, place: [...], kind: number} for numbers, or kind: classes "
                "for several classes"
            )
        if not len(labels):  # on_error="leave_out"
            return batch
        low, high = (int(bound) for bound in labels.aminmax())
        may_lack = low == _MISSING and self._may_lack_labels
        if high >= self.num_classes and (low >= 0 or may_lack):
            raise ConfigError(
                f"labels {low}..{high} need model.net.num_classes={high + 1} or more, "
                f"and it is {self.num_classes}"
            )
        if low < 0 and not may_lack:
            hint = ": -1 is an image without a label; data=folder takes a folder of images" * (low == -1)
            raise ConfigError(
                f"labels {low}..{high} do not fit model.net.num_classes={self.num_classes}{hint}"
            )
        return batch

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Return the loss of a batch of images and labels."""
        images, labels = batch[:2]  # a mixture has the source of each row too
        loss = self._loss(self(images), labels) if self.task is None else self.task.loss(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def _loss(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the images that have a label."""
        if self._may_lack_labels and labels.ndim == 1:
            known = labels != _MISSING
            scores, labels = scores[known], labels[known]
            if not len(labels):
                return scores.sum() * 0  # which has a gradient
        loss: Tensor = self.criterion(scores, labels)
        return loss

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        """Count loss and metric of a batch; each of several validation sets has its own metric."""
        images, labels = batch[:2]
        if not len(images):
            return
        scores = self(images)
        own = [self.metrics[dataloader_idx]] if self.metrics else []
        if self.task is not None:
            for metric in (self.task.metric, *own):
                self.task.update(scores, labels, metric)
            loss, known = self.task.loss(scores, labels), int((~labels.isnan()).sum())
        else:
            for metric in (self.accuracy, *own):
                metric.update(scores, labels)
            loss = nn.functional.cross_entropy(scores, labels, ignore_index=_MISSING)
            known = int((labels != _MISSING).sum())
        if known:
            self.loss.update(loss, known)

    def on_validation_epoch_end(self) -> None:
        """Log loss and metric over all validation sets, and the metric of each of several."""
        self.log("val/loss", self.loss)
        name, metric = ("val/accuracy", self.accuracy)
        if self.task is not None:
            name, metric = self.task.score[0], self.task.metric
        self.log(name, metric, prog_bar=True)
        # Not the values of the batches: of these Lightning divides the sum of sizes by the number of
        # processes as an integer, with gloo.
        for place, each in zip(validation_sets(self.trainer), self.metrics, strict=True):
            self.log(f"{place}/{name.partition('/')[2]}", each)  # such as val/clean/accuracy

    def predict_step(self, batch: Any, _: int) -> list[tuple[Any, ...]]:
        """Return key, class and probability of each image; the class is a number if it has no name.

        For other labels, key and one number per output.
        """
        if not batch.key:  # none could be decoded
            return []
        if self.task is not None:
            return self.task.rows(batch.key, self(batch.image))
        found = self(batch.image).float().softmax(1).max(1)
        named: dict[int, str] = dict(enumerate(self._data.classes or []))  # those of the checkpoint
        classes = [named.get(label, label) for label in found.indices.tolist()]
        return list(zip(batch.key, classes, found.values.tolist(), strict=True))

    def configure_optimizers(self) -> Any:
        """Return the optimiser, and its schedule if there is one."""
        optimizer = self._make_optimizer()
        if self.schedule is None:
            return {"optimizer": optimizer}
        epochs, given = self.trainer.max_epochs, self.schedule
        if not epochs or epochs < 1:
            raise ConfigError("model.schedule needs a number of epochs: give trainer.max_epochs=...")
        schedule = by_epochs(optimizer, epochs, int(given["warmup"]), given["start"], given["end"])
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _make_optimizer(self) -> torch.optim.Optimizer:
        free = set(parameters_without_decay(self.net, self.no_decay))
        decaying = [part for part in self.parameters() if part not in free]
        groups: list[dict[str, Any]] = [{"params": decaying}] if decaying else []
        if free:
            constant = [part for part in self.parameters() if part in free]
            groups.append({"params": constant, "weight_decay": 0.0})
        try:
            return self.optimizer(groups)
        except (TypeError, ValueError) as error:
            given = getattr(self.optimizer, "keywords", {})
            words = {key: value for key, value in given.items() if isinstance(value, str)}
            reason = "".join(f"{key}={value} is a word: " for key, value in words.items())
            remedy = "".join(f"; give a number: model.optimizer.{key}=0.1" for key in words)
            raise ConfigError(f"model.optimizer: {reason}{error}{remedy}") from error

    @property
    def _may_lack_labels(self) -> bool:
        targets = [getattr(split, "target", None) for split in self._data.splits.values()]
        return any(getattr(target, "optional", False) for target in targets)

    @property
    def _data(self) -> tarpeg.ShardDataModule:
        data: tarpeg.ShardDataModule = self.trainer.datamodule  # type: ignore[attr-defined]
        return data


def parameters_without_decay(net: nn.Module, kind: str | None) -> Iterator[nn.Parameter]:
    """Yield the parameters that weight decay leaves alone, see ``no_decay`` of ``Classifier``."""
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    named: set[str] = getattr(net, "no_weight_decay", set)() if kind == "vectors" else set()
    for prefix, module in net.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            is_vector = kind == "vectors" and (parameter.ndim < 2 or name in named)
            is_of_norm = kind == "norms" and isinstance(module, norms)
            if is_vector or is_of_norm:
                yield parameter

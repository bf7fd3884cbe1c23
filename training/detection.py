"""A LightningModule around torchvision's detectors, and one of them that is small enough for two cores."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torchmetrics.detection import MeanAveragePrecision
from torchvision.models.detection import FCOS
from torchvision.models.detection.anchor_utils import AnchorGenerator

from .checks import ConfigError
from .schedules import with_cosine
from .tasks import validation_sets


class Detector(lightning.LightningModule):
    """Losses of a detector of torchvision, and its mean average precision (COCO's, over IoU 0.5 to 0.95).

    Needs pycocotools: ``pip install -e ".[detection]"``.

    Args:
        net: called with images in 0..1 and, in training, targets, as torchvision's detectors are: it returns
            a dict of losses, or a list of dicts with boxes, labels and scores.
        optimizer: called with the parameters.
        classes: number of classes, with the background.
        warmup: steps in which the learning rate rises; then it falls as a cosine to the end of the training.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        classes: int,
        warmup: int = 20,
    ) -> None:
        super().__init__()
        self.net = net
        self.optimizer = optimizer
        self.classes = classes
        self.warmup = warmup
        self._measured: list[tuple[int, Any, Any]] = []  # number of the validation set, found, and targets
        with warnings.catch_warnings():  # of a third package that is not used
            warnings.simplefilter("ignore")
            try:
                self.precision_of_boxes = MeanAveragePrecision(backend="pycocotools", sync_on_compute=False)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f'experiment=detection: {error}: pip install -e ".[detection]"'.replace("\n", " ")
                ) from error

    def on_before_batch_transfer(self, batch: Any, _: int) -> Any:
        """Raise ConfigError for labels out of range: a GPU has an assertion without a message."""
        if isinstance(batch[1], Tensor):
            raise ConfigError(
                "this model finds boxes, and the data has a label per image: give boxes, as data=scene_boxes "
                "or experiment=detection do by data.train.targets, or another model=..."
            )
        highest = max((int(each["labels"].max()) for each in batch[1] if len(each["labels"])), default=0)
        if highest >= self.classes:
            raise ConfigError(
                f"label {highest} needs model.classes={highest + 1} (0 is the background) or more, and it is "
                f"{self.classes}; for numbers with gaps, such as COCO's, give tarpeg.Boxes(labels=[...]) the "
                "ids, in train and val"
            )
        return batch

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Return the sum of the losses of a batch."""
        images, targets = batch[:2]  # a mixture has the source of each row too
        losses: Mapping[str, Tensor] = self.net(images, _plain(targets))
        loss = torch.stack([*losses.values()]).sum()
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        return loss

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        """Compare the boxes of a batch with those of its targets."""
        images, targets = batch[:2]
        if not len(images):  # on_error="leave_out"
            return
        self._measured.append((dataloader_idx, _boxes(self.net(images)), _boxes(targets)))

    def on_validation_epoch_start(self) -> None:
        """Forget what a validation that was interrupted has measured."""
        self._measured = []

    def on_validation_epoch_end(self) -> None:
        """Log mean average precision, and that at IoU 0.5: over all validation sets, and of each."""
        measured: list[Any] = [self._measured]
        if self.trainer.world_size > 1:
            # Not by torchmetrics, which needs as many images on each rank.
            measured *= self.trainer.world_size
            torch.distributed.all_gather_object(measured, self._measured)
        self._measured = []
        sets = {name: number for number, name in enumerate(validation_sets(self.trainer))}
        for prefix, number in {"val": None, **sets}.items():
            for own, predicted, targets in itertools.chain(*measured):
                if number in (None, own):
                    self.precision_of_boxes.update(predicted, targets)
            found = self.precision_of_boxes.compute()
            self.precision_of_boxes.reset()
            for name, value in {"map": found["map"], "map50": found["map_50"]}.items():
                # Equal on all ranks; NCCL compares what is on the device.
                is_main = (prefix, name) == ("val", "map")
                self.log(f"{prefix}/{name}", value.to(self.device), prog_bar=is_main, sync_dist=True)

    def configure_optimizers(self) -> Any:
        """Return the optimiser and its schedule."""
        return with_cosine(self, self.optimizer(self.parameters()), self.warmup)


def _boxes(images: list[dict[str, Any]]) -> list[dict[str, Tensor]]:
    """Return what the precision of boxes is computed from, in the memory of the CPU: masks are large."""
    names = ("boxes", "scores", "labels", "iscrowd", "area")
    return [{name: each[name].cpu() for name in names if name in each} for each in _plain(images)]


def _plain(targets: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return targets of plain tensors: arithmetic of losses on tv_tensors is slower."""
    found = []
    for target in targets:
        tensors = {name: each for name, each in target.items() if isinstance(each, Tensor)}
        found.append({name: each.as_subclass(Tensor) for name, each in tensors.items()})
    return found


def small_fcos(classes: int, size: int = 128, width: int = 64) -> FCOS:
    """Return torchvision's FCOS on one level of stride 8, for objects of up to half the image.

    Args:
        classes: number of classes, with the background.
        size: of the images; others are resized to it.
        width: channels of the network and of its heads, a multiple of 32.
    """
    if width % 32:
        raise ConfigError(f"model.net.width={width} must be a multiple of 32")
    backbone = nn.Sequential(
        _layer(3, width // 2, 2),
        _layer(width // 2, width, 2),
        _layer(width, width, 2),
        *(_Residual(width, dilation) for dilation in (1, 2, 4)),
    )
    backbone.out_channels = width  # type: ignore[assignment]  # where FCOS looks for it
    anchors = AnchorGenerator(((8,),), ((1.0,),))
    return FCOS(
        backbone,
        classes,
        min_size=size,
        max_size=size,
        image_mean=[0.5] * 3,
        image_std=[0.25] * 3,
        anchor_generator=anchors,
        score_thresh=0.05,
        nms_thresh=0.5,
        detections_per_img=50,
    )


def _layer(inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class _Residual(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(_layer(width, width, 1, dilation), _layer(width, width))

    def forward(self, features: Tensor) -> Tensor:
        added: Tensor = features + self.layers(features)
        return added

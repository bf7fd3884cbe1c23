"""A LightningModule around networks for semantic segmentation, and a small U-Net."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import lightning
import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassJaccardIndex

from .checks import ConfigError
from .schedules import with_cosine
from .tasks import metrics_of_sets, validation_sets


class Segmenter(lightning.LightningModule):
    """Cross entropy of each pixel, and the mean IoU over all classes, with the background.

    Args:
        net: from images ``[B, 3, H, W]`` to scores ``[B, classes, H, W]``, or a dict with them as "out", as
            torchvision's networks return it.
        optimizer: called with the parameters.
        classes: number of classes, with the background.
        ignored: class of pixels that count neither in the loss nor in the IoU: ``fill`` of ``tarpeg.Masks``.
        warmup: steps in which the learning rate rises; then it falls as a cosine to the end of the training.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        classes: int,
        ignored: int = 255,
        warmup: int = 20,
    ) -> None:
        super().__init__()
        self.net = net
        self.optimizer = optimizer
        self.classes = classes
        self.ignored = ignored
        self.warmup = warmup
        self.iou = MulticlassJaccardIndex(classes, average="macro", ignore_index=ignored)
        self.ious: Any = nn.ModuleList()  # of each of several validation sets

    def setup(self, stage: str) -> None:
        """Make the metrics of several validation sets."""
        if stage in ("fit", "validate"):
            self.ious = metrics_of_sets(self.iou, self.ious, self.trainer)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``[B, classes, H, W]``."""
        found = self.net(images)
        scores: Tensor = found["out"] if isinstance(found, dict) else found
        return scores

    def on_before_batch_transfer(self, batch: Any, _: int) -> Any:
        """Raise ConfigError for classes out of range: a GPU has an assertion without a message."""
        values = batch[1]
        if not isinstance(values, Tensor) or values.ndim != 3:
            raise ConfigError(
                "this model finds the class of each pixel, and the data has no masks alone: give them, as "
                "data=scene_masks or experiment=segmentation do by data.train.targets, or another model=..."
            )
        highest = int(torch.where(values == self.ignored, 0, values).max()) if len(values) else 0
        if highest >= self.classes:
            raise ConfigError(
                f"class {highest} of the masks needs model.classes={highest + 1} or more, and it is "
                f"{self.classes}; tarpeg.Masks(labels={{...}}) changes values in the files"
            )
        return batch

    def training_step(self, batch: Any, _: int) -> Tensor:
        """Return the cross entropy of a batch."""
        images, masks = batch[:2]  # a mixture has the source of each row too
        total = nn.functional.cross_entropy(
            self(images).float(), masks.long(), ignore_index=self.ignored, reduction="sum"
        )
        loss: Tensor = total / (masks != self.ignored).sum().clamp(min=1)  # not NaN if all are left out
        self.log("train/loss", loss, prog_bar=True, batch_size=len(images))
        return loss

    def validation_step(self, batch: Any, _: int, dataloader_idx: int = 0) -> None:
        """Count the pixels of a batch; each of several validation sets has its own."""
        images, masks = batch[:2]
        if not len(images):  # on_error="leave_out"
            return
        found = self(images).argmax(1)
        self.iou.update(found, masks)
        if self.ious:
            self.ious[dataloader_idx].update(found, masks)

    def on_validation_epoch_end(self) -> None:
        """Log the mean IoU over all validation sets, and that of each of several."""
        self.log("val/miou", self.iou, prog_bar=True)
        for name, iou in zip(validation_sets(self.trainer), self.ious, strict=True):
            self.log(f"{name}/miou", iou)

    def configure_optimizers(self) -> Any:
        """Return the optimiser and its schedule."""
        return with_cosine(self, self.optimizer(self.parameters()), self.warmup)


class UNet(nn.Module):
    """A U-Net for RGB images whose sides are multiples of ``2 ** (depth + 1)``.

    It works on half the resolution, and its scores are interpolated: a quarter of the time.

    Args:
        classes: number of classes, with the background.
        width: channels of the first level; each further one has twice as many.
        depth: number of further levels.
    """

    def __init__(self, classes: int, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.multiple = 2 ** (depth + 1)
        self.down = nn.ModuleList(_pair(*pair, stride=2) for pair in pairwise([3, *widths]))
        self.up = nn.ModuleList(_pair(small + large, small) for small, large in pairwise(widths))
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores ``[B, classes, H, W]``."""
        if images.shape[-2] % self.multiple or images.shape[-1] % self.multiple:
            size = " x ".join(map(str, images.shape[-2:]))
            raise ConfigError(f"images of {size} pixels must have sides that {self.multiple} divides")
        # Twice as fast on a CPU.
        levels = [images.contiguous(memory_format=torch.channels_last)]
        for layers in self.down:
            levels.append(layers(levels[-1]))
        features = levels.pop()
        for layers, finer in zip(reversed(self.up), levels[:0:-1], strict=True):
            larger = nn.functional.interpolate(features, scale_factor=2.0)
            features = layers(torch.cat([finer, larger], dim=1))
        return nn.functional.interpolate(self.last(features), scale_factor=2.0, mode="bilinear")


def _pair(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    for channels, step in ((inputs, stride), (outputs, 1)):
        convolution = nn.Conv2d(channels, outputs, 3, step, 1, bias=False)
        layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)

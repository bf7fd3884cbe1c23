"""MixUp and CutMix: each image mixed with its neighbour in the batch, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .distortions import check_probabilities


@dataclass(frozen=True)
class Mix:
    """Mix each image with its neighbour in the batch, and their labels: torchvision v2's MixUp and CutMix.

    Labels int64 ``[B]`` become float32 ``[B, classes]``, mixed or not; labels of several classes per image,
    float32 ``[B, classes]``, are mixed as they are. Numbers are refused. One ratio holds for a rank's batch
    and depends on seed, epoch and its first sample: only this result depends on the number of ranks.

    Args:
        classes: Number of classes.
        mixup: Alpha of the Beta distribution of MixUp's ratio; 0 disables MixUp.
        cutmix: Alpha of the Beta distribution of CutMix's ratio; 0 disables CutMix.
        probability: Probability, 0 to 1, of mixing a batch.
        cutmix_share: Probability of CutMix if both are enabled.

    Example:
        >>> augment = tarpeg.Augment(mix=tarpeg.Mix(classes=4))
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop(96))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0, augment=augment)
        >>> images, labels = next(iter(data.augmented(data.train_dataloader())))
        >>> labels.shape, labels.dtype
        (torch.Size([8, 4]), torch.float32)
    """

    classes: int
    mixup: float = 0.2
    cutmix: float = 1.0
    probability: float = 1.0
    cutmix_share: float = 0.5

    draws: ClassVar[int] = 3

    def __post_init__(self) -> None:
        if not isinstance(self.classes, int) or self.classes < 1:
            raise ValueError(f"classes={self.classes!r} must be the number of classes, at least 1")
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ValueError(f"{name}={value!r} must be the alpha of a Beta distribution, or 0 for never")
        check_probabilities(self, "probability", "cutmix_share")

    def __call__(
        self, images: Tensor | list[Tensor], labels: Tensor, uniforms: Sequence[float]
    ) -> tuple[Tensor, Tensor]:
        """Mix ``images``, floating point ``[B, C, H, W]``, by three uniform draws."""
        if isinstance(images, list) or images.ndim != 4:
            got = [list(part.shape) for part in images] if isinstance(images, list) else list(images.shape)
            raise ValueError(f"mix takes one view of each image, [B, 3, H, W], got {got}")
        has_shares = labels.is_floating_point()
        if has_shares and (labels.ndim != 2 or labels.shape[1] != self.classes):
            raise ValueError(
                f"mix takes labels int64 [B] or shares of classes [B, {self.classes}], see classes of Mix, "
                f"got {labels.dtype} {list(labels.shape)}"
            )
        if has_shares:
            return self._mixed(images, labels, uniforms)
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise ValueError(f"mix takes labels int64 [B], got {labels.dtype} {list(labels.shape)}")
        low, high = (int(bound) for bound in labels.aminmax()) if labels.device.type == "cpu" else (0, 0)
        if low < 0 or high >= self.classes:
            raise ValueError(f"labels {low}..{high} must be in 0..{self.classes - 1}, see classes of Mix")
        return self._mixed(images, labels, uniforms)

    def _mixed(self, images: Tensor, labels: Tensor, uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
        from torchvision.transforms import v2

        is_mixed, method, seed = uniforms
        if is_mixed >= self.probability or not (self.mixup or self.cutmix):
            if labels.is_floating_point():
                return images, labels
            return images, torch.nn.functional.one_hot(labels, self.classes).float()
        is_cutmix = self.cutmix > 0 and (self.mixup == 0 or method < self.cutmix_share)
        alpha, transform = (self.cutmix, v2.CutMix) if is_cutmix else (self.mixup, v2.MixUp)
        # torchvision draws from torch's CPU generator: seed a copy of it from our draw.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed * 2**53))
            mixed, soft = transform(alpha=alpha, num_classes=self.classes)(images, labels)
        return mixed, soft.float()

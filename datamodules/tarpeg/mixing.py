"""MixUp and CutMix, which mix the images of a batch, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mix:
    """Mix images with their neighbours in the batch, and labels alike: torchvision v2's MixUp and CutMix.

    ``classes``: how many there are. ``mixup`` and ``cutmix``: the alpha of the Beta distribution that the
    shares are drawn from, 0 for never. ``probability``: of mixing a batch at all. ``cutmix_share``: how often
    it is CutMix where it may be either.

    Labels int64 ``[B]`` become float32 ``[B, classes]``, mixed or not. One share holds for a rank's batch and
    depends on seed, epoch and the batch's first sample: the one thing here that the number of ranks changes.
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
                raise ValueError(f"{name}={value!r} is the alpha of a Beta distribution, or 0 for never")
        for name in ("probability", "cutmix_share"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value!r} is a probability, from 0 to 1")

    def __call__(self, images: Tensor, labels: Tensor, drawn: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Mix ``images``, floating point ``[B, C, H, W]``, by three uniform draws."""
        from torchvision.transforms import v2

        if images.ndim != 4:
            raise ValueError(f"mix takes one view of each image, [B, 3, H, W], got {list(images.shape)}")
        if labels.ndim != 1 or labels.dtype != torch.int64:
            raise ValueError(f"mix takes labels int64 [B], got {labels.dtype} {list(labels.shape)}")
        low, high = (int(bound) for bound in labels.aminmax()) if labels.device.type == "cpu" else (0, 0)
        if low < 0 or high >= self.classes:
            raise ValueError(f"labels {low}..{high} do not fit classes={self.classes} of mix")
        is_mixed, which, seed = drawn
        cut = self.cutmix > 0 and (self.mixup == 0 or which < self.cutmix_share)
        if is_mixed >= self.probability or not (self.mixup or self.cutmix):
            return images, torch.nn.functional.one_hot(labels, self.classes).float()
        if cut:
            transform: torch.nn.Module = v2.CutMix(alpha=self.cutmix, num_classes=self.classes)
        else:
            transform = v2.MixUp(alpha=self.mixup, num_classes=self.classes)
        # torchvision draws from torch's generator of the CPU: it is lent one that starts from our draw.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(seed * 2**53))
            mixed, soft = transform(images, labels)
        return mixed, soft.float()

"""What is done to a batch of images on their own device."""
# MERGED: MixUp and CutMix, which mix the images of a batch, and their labels.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..ops import library
from ..sampling import rng
from .distortions import Affine, Color, Distortion, Erase, Mask

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Streams of randomness, apart from those of the crops in reading: one for each distortion, so that adding one
# leaves the numbers of the others as they are.
_FLIP, _AFFINE, _COLOR, _ERASE, _MASK, _MIX = range(16, 22)

# ITU-R BT.601, full range, as JPEG has it: (Y, Cb, Cr) = M[:, :3] (R, G, B) + M[:, 3], levels of 0 to 255.
_YCBCR = (
    (0.299, 0.587, 0.114, 0.0),
    (-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772, 128.0),
    (0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402, 128.0),
)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_ORDERS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}


class Augment(nn.Module):
    """Turn uint8 images into what the network eats, in one pass over memory: ``tarpeg.augment_batch``.

    In training images are distorted, in this order: ``flip``, the probability of mirroring left to right
    (where ``Split(flip=...)`` does not); ``affine``, ``color``, ``erase`` and ``mask``. Training or not, they
    are then converted to ``space``, "rgb" or "ycbcr" (BT.601, full range), and become (image / 255 - mean) /
    std: one number for each of R, G, B (or Y, Cb, Cr), for values in 0..1.

    ``fill``: a level of 0 to 255, or three, for what is erased and for what the warp leaves open, as levels
    of ``space`` and of RGB respectively; by default ``mean``, which is 0 to the network. ``mix``: MixUp and
    CutMix, done by ``ShardDataModule`` as it needs the labels. ``dtype``: "float32", "float16" or "bfloat16".
    ``memory_format``: "contiguous", "channels_last", or None for that of the images.

    ``forward`` takes uint8 ``[B, 3, H, W]`` and returns ``dtype`` of that shape, on the same device. What it
    draws in training it takes from ``params``, which are a function of seed, epoch and sample, so they are
    the same for any number of workers and ranks, and after a resume. Called without them, it numbers the
    images that it sees: 0, 1, 2 ...
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        flip: float = 0.0,
        affine: Affine | None = None,
        color: Color | None = None,
        erase: Erase | None = None,
        mask: Mask | None = None,
        space: Literal["rgb", "ycbcr"] = "rgb",
        fill: float | Sequence[float] | None = None,
        mix: Mix | None = None,
        dtype: str | torch.dtype = torch.float32,
        memory_format: str | torch.memory_format | None = None,
    ) -> None:
        super().__init__()
        if len(mean) != 3 or len(std) != 3:
            raise ValueError(
                f"mean={list(mean)!r} and std={list(std)!r} must have three numbers each: R, G, B"
            )
        if min(std) <= 0:
            raise ValueError(f"std={list(std)!r} must be positive")
        if not 0 <= flip <= 1:
            raise ValueError(f"flip={flip!r} is a probability, from 0 to 1")
        if space not in ("rgb", "ycbcr"):
            raise ValueError(f"space={space!r} must be 'rgb' or 'ycbcr'")
        for part, value in (
            ("affine", affine),
            ("color", color),
            ("erase", erase),
            ("mask", mask),
            ("mix", mix),
        ):
            if isinstance(value, Mapping):  # what a config gives for an override of a part that it has not
                raise ValueError(
                    f"{part}={dict(value)!r} must be a tarpeg.{part.title()}; in Hydra it needs a _target_: "
                    f"+augment.{part}._target_=tarpeg.{part.title()}"
                )
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.flip, self.space, self.mix = flip, space, mix
        self.fill = [min(max(255 * level, 0.0), 255.0) for level in self.mean] if fill is None else fill
        self.dtype = _named("dtype", dtype, _DTYPES)
        self.memory_format = (
            None if memory_format is None else _named("memory_format", memory_format, _ORDERS)
        )
        parts = {_AFFINE: affine, _COLOR: color, _ERASE: erase, _MASK: mask}
        self.distortions: dict[int, Distortion] = {s: part for s, part in parts.items() if part is not None}
        self._seen = 0

    @property
    def is_random(self) -> bool:
        """Whether it draws numbers in training, apart from those of ``mix``."""
        return bool(self.flip or self.distortions)

    def params(
        self,
        ids: npt.ArrayLike,
        size: Sequence[int],
        *,
        seed: int = 0,
        epoch: int = 0,
        occurrence: npt.ArrayLike | None = None,
        views: int = 1,
    ) -> dict[str, Tensor]:
        """Draw what ``forward`` is to do to the samples ids [B]: arguments of ``tarpeg.augment_batch``.

        ``size``: height and width of the images. ``turns``: which occurrence in the epoch of its sample each
        is, [B], from 0. ``views``: how many images there are of each sample; numbers are then for
        [views * B] images, those of the first views first.
        """
        rows, (height, width) = np.asarray(ids), size
        turn = np.zeros_like(rows) if occurrence is None else np.asarray(occurrence)

        def drawn(count: int, stream: int) -> npt.NDArray[np.float64]:
            firsts = [rng.first_draw(turn, view) for view in range(views)]
            each = [rng.uniforms(seed, epoch, rows, count, stream, first) for first in firsts]
            return np.concatenate(each)

        params: dict[str, Tensor] = {}
        if self.flip:
            flips = rng.flips(drawn(1, _FLIP)[:, 0], self.flip)
            params["flip"] = torch.from_numpy(flips)
        for stream, distortion in self.distortions.items():
            params |= distortion.params(drawn(distortion.draws, stream), (height, width))
        return params

    def forward(self, images: Tensor, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Normalise ``images``, uint8 ``[B, 3, H, W]``, and in training distort them by ``params``."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"images must be uint8 [B, 3, H, W], got {images.dtype} {list(images.shape)}")
        if not self.training:
            params = {}
        elif params is None:
            params = self._next_params(images) if self.is_random else {}
        return self.transform(images, params)

    def transform(self, images: Tensor, params: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Distort ``images`` by ``params``, training or not, and normalise them; into ``out`` if given."""
        if not params and self.space == "rgb" and not _has_operators(images.device):
            return self._normalise_by_torch(images)
        # Importing this loads the operators; importing this module must not.
        from ..ops.augment import augment_batch

        colours = torch.tensor(_YCBCR, dtype=torch.float64) if self.space == "ycbcr" else None
        arguments: dict[str, Any] = {"colour_matrix": colours, **params}
        return augment_batch(
            images,
            **arguments,
            fill=self.fill,
            mean=self.mean,
            std=self.std,
            dtype=self.dtype,
            memory_format=self.memory_format,
            out=out,
        )

    def mix_batch(
        self, images: Tensor, labels: Tensor, first: int, *, seed: int = 0, epoch: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Mix what ``forward`` made of a batch, and its labels; ``first``: the number of its first sample."""
        if self.mix is None or not self.training:
            return images, labels
        return self.mix(images, labels, rng.uniforms(seed, epoch, [first], Mix.draws, _MIX)[0].tolist())

    def denormalise(self, image: Tensor) -> Tensor:
        """Turn what the network is shown back into levels of RGB, float64 ``[3, H, W]``, to look at it."""
        mean, std = (
            torch.tensor(list(part), dtype=torch.float64)[:, None, None] for part in (self.mean, self.std)
        )
        levels = 255 * (image.double() * std + mean)
        if self.space == "rgb":
            return levels
        matrix = torch.tensor(_YCBCR, dtype=torch.float64)
        back = torch.linalg.inv(matrix[:, :3])
        return torch.einsum("ij,jhw->ihw", back, levels - matrix[:, 3, None, None])

    def _next_params(self, images: Tensor) -> dict[str, Tensor]:
        ids = np.arange(self._seen, self._seen + len(images))
        self._seen += len(images)
        return self.params(ids, images.shape[2:])

    def _normalise_by_torch(self, images: Tensor) -> Tensor:
        """Normalise on a device that has no operators: CUDA without a compiler for it, or another kind."""
        std = torch.tensor(self.std, dtype=torch.float64)
        scale, shift = 1 / (255 * std), -torch.tensor(self.mean, dtype=torch.float64) / std
        factor, term = (
            t.float().reshape(1, 3, 1, 1).to(images.device, non_blocking=True) for t in (scale, shift)
        )
        normalised = torch.addcmul(term, images.float(), factor).to(self.dtype)
        return (
            normalised
            if self.memory_format is None
            else normalised.contiguous(memory_format=self.memory_format)
        )


def _has_operators(device: torch.device) -> bool:
    return device.type == "cpu" or (device.type == "cuda" and library.has_cuda())


def _named(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    """Look up a torch constant by name, or take it as it is."""
    if value in known.values():
        return value
    if value not in known:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, known))}")
    return known[value]


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

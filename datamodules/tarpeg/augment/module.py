"""``Augment``, the module that distorts and normalises a batch on its own device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..errors import explains_arguments
from ..ops import library
from ..remedies import Call, Message, Setting
from ..sampling import rng
from . import geometry
from .distortions import Affine, Distortion, Erase, GridMask, check_probabilities
from .geometry import Move
from .mixing import Mix
from .policies import ColorJitter, Interpolation, Policy, Program, applied

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

# Streams of randomness, apart from those of the crops. One per distortion, so that adding a distortion does
# not change the draws of the others.
_FLIP, _AFFINE, _ERASE, _MASK, _MIX = 16, 17, 19, 20, 21
_POLICIES = 32  # and the numbers from here on, one per policy, `color` last

_UNTRACED = (
    "tarpeg.Augment draws its random params in Python. For fullgraph=True give them, "
    "augment(images, params), from outside of the compiled function: "
    "params = augment.params(ids, images.shape[2:], seed=0, epoch=0)"
)

# ITU-R BT.601, full range, as in JPEG: (Y, Cb, Cr) = M[:, :3] (R, G, B) + M[:, 3], levels 0..255.
_YCBCR = (
    (0.299, 0.587, 0.114, 0.0),
    (-0.299 / 1.772, -0.587 / 1.772, 0.886 / 1.772, 128.0),
    (0.701 / 1.402, -0.587 / 1.402, -0.114 / 1.402, 128.0),
)
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_MEMORY_FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last, None: None}


@explains_arguments({"horizontal": "flip= is the probability of mirroring left to right"})
class Augment(nn.Module):
    """Turn uint8 images into normalised network input, in one pass over memory.

    In training, images are distorted in this order: ``flip``, ``policy``, ``color``, ``affine``, ``erase``,
    ``mask``. In training and evaluation they are then converted to ``space`` and normalised:
    (image / 255 - mean) / std.

    ``forward`` takes uint8 ``[B, 3, H, W]``, or gray ``[B, 1, H, W]`` if ``mean`` and ``std`` have one number
    each (then without ``policy``, ``color`` and "ycbcr"), and returns ``dtype`` of the same shape on the same
    device. Its random parameters come from ``params``, a function of seed, epoch and sample ids: they are the
    same for any number of workers and ranks, and after a resume. Without params, images count as samples 0,
    1, 2 ... in the order of the calls.

    Args:
        mean: Mean of each channel, for values in 0 to 1.
        std: Standard deviation of each channel, for values in 0 to 1.
        flip: Probability, 0 to 1, of mirroring left to right, if ``Split(flip=...)`` does not do it.
        policy: A policy such as ``RandAugment()``, or a list of policies.
        color: Random brightness, contrast, saturation and hue: the last policy.
        affine: Random scale, shear, rotation and translation.
        erase: Erasing of a random box.
        mask: Erasing of random cells of a grid.
        space: "rgb", or "ycbcr" (BT.601, full range).
        fill: Level in 0 to 255, or one per channel, of erased pixels (in ``space``) and of pixels from
            outside the warped image (in RGB); by default ``mean``, which becomes 0.
        mix: MixUp and CutMix, which ``ShardDataModule`` runs because they need the labels.
        dtype: "float32", "float16" or "bfloat16", or torch's type.
        memory_format: "contiguous", "channels_last", or None for the images' own.

    Example:
        >>> augment = tarpeg.Augment(flip=0.5, color=tarpeg.ColorJitter(0.4), erase=tarpeg.Erase(0.25))
        >>> images = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8)
        >>> params = augment.params([0, 1, 2, 3, 4, 5, 6, 7], images.shape[2:], seed=0, epoch=0)
        >>> augment(images, params).shape
        torch.Size([8, 3, 64, 64])
        >>> augment.eval()(images).dtype  # only converts and normalises
        torch.float32
    """

    def __init__(
        self,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        *,
        flip: float = 0.0,
        policy: Policy | Sequence[Policy] | None = None,
        color: ColorJitter | None = None,
        affine: Affine | None = None,
        erase: Erase | None = None,
        mask: GridMask | None = None,
        space: Literal["rgb", "ycbcr"] = "rgb",
        fill: float | Sequence[float] | None = None,
        mix: Mix | None = None,
        dtype: str | torch.dtype = torch.float32,
        memory_format: str | torch.memory_format | None = None,
    ) -> None:
        super().__init__()
        _check_levels(mean, std)
        if space not in ("rgb", "ycbcr"):
            raise ValueError(f"space={space!r} must be 'rgb' or 'ycbcr'")
        parts: dict[str, tuple[type, object]] = {
            "affine": (Affine, affine),
            "color": (ColorJitter, color),
            "erase": (Erase, erase),
            "mask": (GridMask, mask),
            "mix": (Mix, mix),
        }
        for name, (kind, part) in parts.items():
            if part is not None and not isinstance(part, kind):  # such as a config without its class
                shown = dict(part) if isinstance(part, Mapping) else part
                raise ValueError(
                    Message(
                        f"{name}={shown!r} must be a tarpeg.{kind.__name__}, got a "
                        f"{type(part).__name__}: give ",
                        Setting("Augment", name, Call(f"tarpeg.{kind.__name__}")),
                    )
                )
        if len(mean) == 1:
            for name, value in (("color", color), ("policy", policy), ("space", space)):
                if value not in (None, "rgb"):
                    raise ValueError(
                        f"{name}={value!r} needs RGB images, and mean={list(mean)!r} is that of gray ones: "
                        "give flip, affine, erase and mask only"
                    )
        self.mean, self.std = tuple(map(float, mean)), tuple(map(float, std))
        self.flip, self.space, self.mix = flip, space, mix
        check_probabilities(self, "flip")
        self.fill = [min(max(255 * level, 0.0), 255.0) for level in self.mean] if fill is None else fill
        self.dtype = _torch_constant("dtype", dtype, _DTYPES)
        self.memory_format = _torch_constant("memory_format", memory_format, _MEMORY_FORMATS)
        self.policies = _policies_of(policy) + (() if color is None else (color,))
        drawn: list[tuple[int, Policy]] = [*enumerate(self.policies, _POLICIES)]
        if flip and self.policies:
            drawn.insert(0, (_FLIP, _Flip(flip)))
        self.stages = _stages_of(drawn)
        streams = {_AFFINE: affine, _ERASE: erase, _MASK: mask}
        self.distortions: dict[int, Distortion] = {s: part for s, part in streams.items() if part is not None}
        self._seen = 0

    @property
    def is_random(self) -> bool:
        """Whether training draws random parameters, apart from those of ``mix``."""
        return bool(self.flip or self.stages or self.distortions)

    def params(
        self,
        ids: npt.ArrayLike,
        size: Sequence[int],
        *,
        seed: int = 0,
        epoch: int = 0,
        occurrence: npt.ArrayLike | None = None,
        views: int | Sequence[int] = 1,
    ) -> dict[str, Tensor]:
        """Draw the parameters of some samples: arguments of ``tarpeg.augment_batch``.

        Args:
            ids: Sample ids [B].
            size: (height, width) of the images.
            seed: Seed of the run.
            epoch: Epoch, from 0.
            occurrence: [B], which occurrence of its sample in the epoch, from 0; None is 0.
            views: Images per sample, or the numbers of their views.

        Returns:
            Tensors of views * B rows, the first view of all samples first. ``ops0``, ``values0`` and
            ``weights0``, ``ops1`` ... are the programs of ``policy`` and ``color``.
        """
        rows, (height, width) = np.asarray(ids), size
        occurrences = np.zeros_like(rows) if occurrence is None else np.asarray(occurrence)
        numbers = range(views) if isinstance(views, int) else views
        firsts = [rng.first_draw(occurrences, view) for view in numbers]

        def uniforms(count: int, stream: int) -> rng.Float64:
            return np.concatenate([rng.uniforms(seed, epoch, rows, count, stream, first) for first in firsts])

        params: dict[str, Tensor] = {}
        for number, stage in enumerate(self.stages):
            programs = [
                policy.program(uniforms(policy.draws, stream), (height, width))
                for stream, policy in stage.policies
            ]
            params[f"ops{number}"] = torch.cat([program.ops for program in programs], 2)
            params[f"values{number}"] = torch.cat([program.values for program in programs], 2)
            if programs[0].weights is not None:
                params[f"weights{number}"] = programs[0].weights
        if self.flip and not self.stages:
            params["flip"] = torch.from_numpy(uniforms(1, _FLIP)[:, 0] < self.flip)
        for stream, distortion in self.distortions.items():
            params |= distortion.params(uniforms(distortion.draws, stream), (height, width))
        return params

    def geometry(self, params: Mapping[str, Tensor], size: Sequence[int]) -> Tensor | None:
        """Return how ``params`` move the pixels of each image: float64 [B, 2, 3], or None if they move none.

        The matrices map points (x, y) of the image to points of its result, of the same size, flips included.
        Coordinates are those of pixel edges: pixel i covers [i, i + 1), and a mirrored image of width w has
        x' = w - x. AugMix, whose result is a sum of images that lie differently, counts as not moving.
        What one of several steps moves out of the image is lost, also if the next one moves that place back:
        of targets, ``View.shows`` knows it.

        Args:
            params: The result of ``params``, on any device; the matrices are on that device.
            size: (height, width) of the images.

        Example:
            >>> augment = tarpeg.Augment(flip=1.0)
            >>> params = augment.params([7], (200, 300))
            >>> augment.geometry(params, (200, 300)).tolist()
            [[[-1.0, 0.0, 300.0], [0.0, 1.0, 0.0]]]
        """
        return geometry.composed(self.moves(params, size))

    def moves(self, params: Mapping[str, Tensor], size: Sequence[int]) -> list[Move]:
        """Return the steps that ``geometry`` is the product of, in their order."""
        return geometry.moves(params, size, [stage.interpolation != "bilinear" for stage in self.stages])

    def forward(self, images: Tensor, params: Mapping[str, Tensor] | None = None) -> Tensor:
        """Normalise ``images``, uint8 ``[B, C, H, W]``; in training, distort them by ``params`` first."""
        channels = len(self.mean)
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != channels:
            remedy = ""
            if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[1] != channels:
                remedy = f"; mean={list(self.mean)} has {channels} of {images.shape[1]} channels, see Split"
            raise ValueError(
                f"images must be uint8 [B, {channels}, H, W], got {images.dtype} {list(images.shape)}{remedy}"
            )
        if not self.training or (params is None and not self.is_random):
            params = {}
        elif params is None and torch.compiler.is_compiling():
            # Dynamo cannot trace the draws of numpy: they stay outside of the compiled graph.
            torch._dynamo.graph_break(msg=_UNTRACED)
            params = torch.compiler.disable(self._next_params)(images)
        elif params is None:
            params = self._next_params(images)
        return self.transform(images, params)

    def transform(self, images: Tensor, params: Mapping[str, Tensor], out: Tensor | None = None) -> Tensor:
        """Distort ``images`` by ``params``, in training or not, and normalise them, into ``out`` if given."""
        kind = images.device.type
        # An export to ONNX leaves out, in silence, an operator that fills its argument.
        is_exported = torch.onnx.is_in_onnx_export()
        if is_exported and (params or self.space != "rgb"):
            raise ValueError(
                f"space={self.space!r}: Augment is exported to ONNX in eval() and with space='rgb' alone"
            )
        has_operators = kind == "cpu" or (kind == "cuda" and library.has_cuda(images.device))
        has_operators = has_operators and not is_exported
        if not params and self.space == "rgb" and not has_operators:
            return self._normalise_by_torch(images)
        # Importing ops.augment loads the native library; importing this module must not.
        from ..ops.augment import augment_batch

        matrix = torch.tensor(_YCBCR, dtype=torch.float64, device="cpu") if self.space == "ycbcr" else None
        arguments: dict[str, Any] = {"colour_matrix": matrix, **params}
        if self.stages and params:
            images, arguments["programs"] = self._run_policies(images, arguments)
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
        self,
        images: Tensor,
        labels: Tensor,
        first: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        occurrence: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """In training, mix the output of ``forward`` and its labels.

        Args:
            images: Output of ``forward``.
            labels: int64 [B].
            first: Id of the batch's first sample.
            seed: Seed of the run.
            epoch: Epoch, from 0.
            occurrence: Which occurrence of the first sample in the epoch, in repeated augmentation.
        """
        if self.mix is None or not self.training:
            return images, labels
        begin = rng.first_draw(np.array([occurrence]))
        uniforms = rng.uniforms(seed, epoch, [first], Mix.draws, _MIX, begin)
        return self.mix(images, labels, uniforms[0].tolist())

    def denormalise(self, image: Tensor) -> Tensor:
        """Turn an image of ``forward`` back into levels, float64 ``[C, H, W]``, for display."""
        mean, std = (
            torch.tensor(list(part), dtype=torch.float64, device=image.device)[:, None, None]
            for part in (self.mean, self.std)
        )
        levels = 255 * (image.double() * std + mean)
        if self.space == "rgb":
            return levels
        matrix = torch.tensor(_YCBCR, dtype=torch.float64, device=image.device)
        inverse = torch.linalg.inv(matrix[:, :3])
        return torch.einsum("ij,jhw->ihw", inverse, levels - matrix[:, 3, None, None])

    def _next_params(self, images: Tensor) -> dict[str, Tensor]:
        ids = np.arange(self._seen, self._seen + len(images))
        self._seen += len(images)
        return self.params(ids, images.shape[2:])

    def _run_policies(self, images: Tensor, params: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Move programs out of ``params``: run all but the last, and return the images and the last one."""
        from ..ops.programs import run_programs

        programs = [
            {
                "ops": params.pop(f"ops{number}"),
                "values": params.pop(f"values{number}"),
                "weights": params.pop(f"weights{number}", None),
                "nearest": stage.interpolation != "bilinear",
                "fill": stage.fill,
            }
            for number, stage in enumerate(self.stages)
        ]
        for program in programs[:-1]:
            images = run_programs(images, **program)
        return images, programs[-1]

    def _normalise_by_torch(self, images: Tensor) -> Tensor:
        """Normalise on a device without operators: CUDA without a compiler for it, or another kind."""
        mean, std = (torch.tensor(part, dtype=torch.float64, device="cpu") for part in (self.mean, self.std))
        scale, shift = 1 / (255 * std), -mean / std
        factor, term = (
            t.float().reshape(1, -1, 1, 1).to(images.device, non_blocking=True) for t in (scale, shift)
        )
        normalised = torch.addcmul(term, images.float(), factor)
        return normalised.to(self.dtype, memory_format=self.memory_format or torch.preserve_format)


def _check_levels(mean: Sequence[float], std: Sequence[float]) -> None:
    """Raise ValueError for a mean and a standard deviation that do not normalise values in 0..1."""
    is_list = all(hasattr(given, "__len__") and not isinstance(given, str) for given in (mean, std))
    if not is_list or len(mean) != len(std) or len(mean) not in (1, 3):
        shown = [list(given) if is_list else given for given in (mean, std)]
        raise ValueError(
            f"mean={shown[0]!r} and std={shown[1]!r} must be lists of three numbers each, R, G, B, or of "
            "one for gray images"
        )
    if min(std) <= 0:
        raise ValueError(f"std={list(std)!r} must be positive")
    if max(mean) > 1:
        raise ValueError(
            f"mean={list(mean)!r} and std={list(std)!r} must be for values in 0..1: divide both by 255"
        )


def _policies_of(given: Any) -> tuple[Policy, ...]:
    """Return ``policy=``, one policy, a list of these, or None, as a tuple."""
    policies = [] if given is None else [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        policies = list(given)
    for each in policies:
        if not isinstance(each, Policy):
            raise ValueError(
                f"policy={each!r} must be a policy such as tarpeg.RandAugment(), or a list of these; "
                "transforms of torchvision belong in Split(transform=...)"
            )
    return tuple(policies)


class _Stage(NamedTuple):
    """Policies that one call of ``run_programs`` applies in order, each with its stream of random numbers."""

    policies: tuple[tuple[int, Policy], ...]
    interpolation: Interpolation | None
    fill: float | Sequence[float] | None


def _stages_of(policies: Sequence[tuple[int, Policy]]) -> list[_Stage]:
    """Join neighbours of one chain each that warp with the same interpolation and fill, or not at all."""
    stages: list[_Stage] = []
    for stream, policy in policies:
        own = _Stage(((stream, policy),), policy.interpolation, policy.fill)
        if stages and not (policy.chains or stages[-1].policies[-1][1].chains):
            last = stages[-1]
            both_warp = own.interpolation is not None and last.interpolation is not None
            if not both_warp or (own.interpolation, own.fill) == (last.interpolation, last.fill):
                geometry = last if own.interpolation is None else own
                stages[-1] = geometry._replace(policies=last.policies + own.policies)
                continue
        stages.append(own)
    return stages


@dataclass(frozen=True)
class _Flip(Policy):
    """Mirror left to right: ``Augment(flip=...)`` before a policy."""

    probability: float

    draws: ClassVar[int] = 1

    def program(self, uniforms: rng.Float64, size: tuple[int, int]) -> Program:
        """Programs of one operation, from draws [B, 1]."""
        return applied("FLIP", uniforms[:, 0] < self.probability)


def _torch_constant(name: str, value: Any, constants: Mapping[Any, Any]) -> Any:
    """Return one of torch's constants, given itself or its name, with or without "torch."."""
    if value in constants.values():
        return value
    value = value.removeprefix("torch.") if isinstance(value, str) else value
    if value not in constants:
        raise ValueError(f"{name}={value!r} must be one of {', '.join(map(repr, constants))}")
    return constants[value]

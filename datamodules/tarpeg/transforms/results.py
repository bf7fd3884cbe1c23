"""Running the steps in Python: what they return for the first image, and errors with step and sample."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import warn
from ..forks import check_children, end_child
from .adapters import original
from .generators import own_generators
from .pipeline import Pipeline
from .pixels import PixelFormat, normalised
from .torchvision import Step, shown_step

log = logging.getLogger("tarpeg")

_REPEATS = 3  # runs that must equal the first one
_PIL_HINT = (
    " Images are uint8 tensors [3, H, W], not PIL images: put torchvision's v2.ToPILImage() before steps "
    "that need PIL or arrays, and v2.PILToTensor() after them."
)
_OF_ARRAYS = ("PIL", "'Tensor' object", "Cannot handle this data type", "with Tensor input", "OpenCV")
_FLOAT_HINT = " Put v2.ToDtype(torch.float32, scale=True) before steps that need floats."
_SEVERAL = "Views are a list of transforms, one each: transform=[first, second]; FiveCrop needs torch.stack."
_ENDING = "End it with torchvision's v2.ToImage(), or Albumentations' ToTensorV2()."
_REMEDIES: dict[type, str] = {list: _SEVERAL, tuple: _SEVERAL, dict: "Return the image alone."}


class TransformError(RuntimeError):
    """A transform that raised, or whose result does not fit into the batch."""


def shortened(error: TransformError) -> TransformError:
    """Return an error without the frames of tarpeg, which go to the log; its cause has those of the user."""
    log.info("%s", "".join(traceback.format_exception(error)))
    cause = error.__cause__
    if cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = cause.__traceback__.tb_next  # the first frame is that of run_steps
    return error.with_traceback(None)


def run_steps(
    steps: Sequence[Step], image: Any, where: Callable[[], str], target: dict[str, Any] | None = None
) -> Any:
    """Return the result of the steps for a uint8 image [3, H, W]; ``where`` describes its sample.

    A ``target``, see ``moving``, is changed as the image is moved.

    Raises TransformError if one of them raises, and RuntimeError if one has forked this process.
    """
    process = os.getpid()
    try:
        for number, step in enumerate(steps):
            try:
                image = step(image) if target is None else applied(step, image, target)
            except Exception as error:
                text = " ".join(str(error).split()).rstrip(".")
                hint = ""
                if "float tensor" in text:
                    hint = _FLOAT_HINT
                elif any(part in text for part in _OF_ARRAYS):
                    hint = _PIL_HINT
                place = f"{shown_step(original(step))}, step {number + 1} of the {len(steps)} in Python"
                raise TransformError(
                    f"{where()}: transform= failed in {place}, on {described(image)}: "
                    f"{type(error).__name__}: {text[:500]}.{hint}"
                ) from error
    finally:
        end_child(process)
    check_children()
    return image


def applied(step: Step, image: Any, target: dict[str, Any]) -> Any:
    """Return the image after a step, and change its target; see ``moving``, which imports torchvision."""
    from . import moving

    return moving.applied(step, image, target)


def described(value: Any) -> str:
    """Return type and shape of what a step takes or returns."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    shape = getattr(value, "shape", None) or getattr(value, "size", None)
    return f"a {type(value).__name__}" + (f" of {shape}" if isinstance(shape, tuple) else "")


@dataclass(frozen=True)
class Outcome:
    """The results of a view: of ``pipeline.python``, ``dtype`` and ``shape`` of each sample."""

    pipeline: Pipeline
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def is_rgb(self) -> bool:
        """Whether the results are uint8 ``[3, H, W]``, which is normalised natively."""
        return self.dtype == torch.uint8 and self.shape[:-2] == (3,)

    def check(self, result: Any, where: Callable[[], str]) -> None:
        """Raise TransformError for a result of another type or shape."""
        if isinstance(result, Tensor) and (result.dtype, tuple(result.shape)) == (self.dtype, self.shape):
            return
        one_type = "Have all its branches return one type: end it with"
        if not isinstance(result, Tensor):
            remedy = f"{one_type} v2.PILToTensor()."
        elif result.dtype != self.dtype:
            remedy = f"{one_type} v2.ToDtype(torch.float32, scale=True)."
        else:
            remedy = "End it with a crop or a resize to a fixed size, such as v2.CenterCrop(224)."
        wanted = described(torch.empty(self.shape, dtype=self.dtype, device="meta"))
        raise TransformError(
            f"{where()}: transform= returned {described(result)}, and {wanted} for the first sample: the "
            f"results of all samples must have one type and one shape. {remedy}"
        )


def outcome_of(
    pipeline: Pipeline,
    image: Tensor,
    where: Callable[[], str],
    seed: int,
    example: Callable[[tuple[int, int]], dict[str, Any]] | None = None,
) -> Outcome:
    """Run a pipeline on its first image, uint8 ``[3, H, W]``, to see what it returns.

    ``example`` returns a target of an image of (height, width), for steps that take targets.

    Raises TransformError if a step raises or the result is not a tensor of uint8 or floats. Warns if equal
    seeds give different results.
    """
    start = prepared(pipeline, image[None])[0]
    with own_generators() as seed_all:

        def run(steps: tuple[Step, ...]) -> Any:
            seed_all(seed, steps)
            target = None if example is None else example((start.shape[-2], start.shape[-1]))
            return run_steps(steps, start.clone(), where, target)

        result = run(pipeline.python)
        found = Outcome(pipeline, result.dtype, tuple(result.shape)) if isinstance(result, Tensor) else None
        if pipeline.tail and not (found and found.is_rgb):
            pipeline = replace(pipeline, python=pipeline.python + pipeline.tail, tail=(), levels=None)
            result = run(pipeline.python)
        is_image = isinstance(result, Tensor) and (result.dtype == torch.uint8 or result.is_floating_point())
        if not is_image or not result.numel():
            if is_image:
                remedy = "Give its crop or resize a size of at least 1."
            elif isinstance(result, Tensor):
                remedy = "Convert it with image.to(torch.uint8)."
            else:
                remedy = _REMEDIES.get(type(result), _ENDING + _PIL_HINT)
            raise TransformError(
                f"{where()}: transform= returned {described(result)}: it must return a tensor of uint8 or "
                f"floats. {remedy}"
            )
        first = result.clone()
        if not all(_is_same(first, run(pipeline.python)) for _ in range(_REPEATS)):
            warn(
                "transform= returns other results for equal seeds: it draws from a generator of its own, so "
                "runs cannot be repeated or resumed exactly. Draw from the global generators of torch, numpy "
                "or Python, which are seeded for each sample, and give compositions of Albumentations as "
                "they are, not within a function."
            )
    return Outcome(pipeline, first.dtype, tuple(first.shape))


def _is_same(one: Tensor, other: Any) -> bool:
    is_alike = isinstance(other, Tensor) and one.shape == other.shape
    return is_alike and bool(((one == other) | one.isnan()).all())


def prepared(pipeline: Pipeline, images: Tensor, *, is_whole: bool = False) -> Tensor:
    """Return images as the steps in Python get them.

    Args:
        pipeline: Pipeline of the view.
        images: Decoded images, [B, 3, H, W].
        is_whole: They come before conversions.
    """
    levels = pipeline.levels if pipeline.levels_first and not is_whole else None
    if pipeline.takes_planes:
        out = torch.empty(images.shape, dtype=levels.dtype if levels else torch.uint8, device="cpu")
        return normalised(images, levels or PixelFormat(), out)
    return normalised(images, levels) if levels else images

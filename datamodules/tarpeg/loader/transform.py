"""A user's transform: which of its steps the decoder does, and the others per sample in Python.

torchvision, timm and Albumentations are recognised by the modules of their classes and never imported here.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from ..augment.policies import Policy, run_policies
from ..errors import warn
from ..sampling.crops import CenterCrop, Crop, Progressive, RandomCrop, RandomResizedCrop, Whole
from .config import PixelFormat

Step = Callable[[Any], Any]
Transform = Callable[[Any], Any]

# Steps that leave a uint8 RGB tensor as it is.
_NOTHING = {"ToImage", "PILToTensor", "ToPureTensor", "Identity", "RGB"}
CONVERSIONS = {"ToDtype", "ConvertImageDtype", "ToTensor"}
# Steps that take PIL images in most lists, and make tensors of them.
_FROM_PIL = {"ToImage", "PILToTensor", "ToTensor"}
_CROPS = {"RandomResizedCrop", "RandomCrop", "CenterCrop", "Resize"}
_INTERPOLATIONS = {"bilinear", "bicubic", "lanczos", "box", "nearest", "nearest-exact"}
_BY_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
_TIMM = ("timm.data.auto_augment", "timm.data.transforms")
# timm's names for steps of torchvision.
_OF_TIMM = {
    "MaybeToTensor": "ToTensor",
    "MaybePILToTensor": "PILToTensor",
    "RandomResizedCropAndInterpolation": "RandomResizedCrop",
}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_REPEATS = 3  # runs that must equal the first one
_PIL_HINT = (
    " Images are uint8 tensors [3, H, W], not PIL images: put torchvision's v2.ToPILImage() before steps "
    "that need PIL or arrays, and v2.PILToTensor() after them."
)
_OF_ARRAYS = ("PIL", "'Tensor' object", "Cannot handle this data type", "with Tensor input", "OpenCV")
_FLOAT_HINT = " Put v2.ToDtype(torch.float32, scale=True) before steps that need floats."
_SEVERAL = "Views are a list of transforms, one each: transform=[first, second]; FiveCrop needs torch.stack."
_ENDING = "End it with torchvision's v2.ToImage(), or Albumentations' ToTensorV2()."
_REMEDIES = {list: _SEVERAL, tuple: _SEVERAL, dict: "Return the image alone.", object: _ENDING + _PIL_HINT}


class TransformError(RuntimeError):
    """A transform that raised, or whose result does not fit into the batch."""


@dataclass(frozen=True)
class FullImage:
    """The whole image, one at a time: uncropped, or with its shorter side resized to ``shorter`` pixels."""

    shorter: int | None = None

    size = (1, 1)  # unknown before an image is read
    draws = 0

    def boxes(self, sizes: npt.ArrayLike, draws: npt.ArrayLike | None = None) -> npt.NDArray[np.int32]:
        """Boxes, int32 [B, 4], from upright image sizes [B, 2]."""
        return Whole(1).boxes(sizes)

    def target(self, height: int, width: int) -> tuple[int, int]:
        """Return the size of the result for an image, rounded as by torchvision."""
        if self.shorter is None:
            return height, width
        short, long = sorted((height, width))
        longer = int(self.shorter * long / short)
        return (self.shorter, longer) if height <= width else (longer, self.shorter)


@dataclass(frozen=True)
class Pipeline:
    """How one view is made: by the decoder (``crop``, ``flip``), by ``policies``, then by ``python``.

    ``levels``: the format that conversions and Normalize make of uint8 images, after ``python``, or before it
    if ``levels_first``; None without them. ``tail``: these steps at the end, for results of ``python`` that
    are not uint8 ``[3, H, W]``. ``least``: ``uncropped`` runs on images smaller than this (height, width), or
    of unknown size, instead of everything before ``tail``. ``head``: the native steps at the beginning, with
    notes.
    """

    crop: Crop | Progressive | FullImage
    flip: float = 0.0
    interpolation: Any = "bilinear"  # a name of ops.decode
    antialias: bool = True
    policies: tuple[Policy, ...] = ()
    python: tuple[Step, ...] = ()
    levels: PixelFormat | None = None
    levels_first: bool = False
    tail: tuple[Step, ...] = ()
    least: tuple[int, int] | None = None
    uncropped: tuple[Step, ...] = ()
    head: tuple[tuple[str, str], ...] = ()

    @property
    def runs_python(self) -> bool:
        """Whether all samples are processed one by one in Python."""
        return bool(self.python) or isinstance(self.crop, FullImage)

    @property
    def takes_planes(self) -> bool:
        """Whether the memory of images for Python is in planes: torchvision's steps take 0.8 of the time."""
        first = [step for step in self.python[:1] if not isinstance(step, (_Albumentations, _OnPil))]
        return any(name_of(step) != "ToPILImage" for step in first)


def pipeline_of(
    transform: Transform | None, crop: Crop | Progressive | None, flip: float, interpolation: str
) -> Pipeline:
    """Return how a view is made by ``transform``, after ``crop``, ``flip`` and ``interpolation`` if given.

    Raises ValueError for a transform that cannot be called.
    """
    steps = [] if transform is None else _flattened(transform)
    head = _Head(crop, flip, interpolation)
    if crop is not None:
        head.names = [(repr(crop), f"in the decoder, {interpolation}")]
        head.names += [(f"flip={flip:g}", "in the decoder")] if flip else []
    while head.position < len(steps) and (count := head.absorb(steps)):
        head.position += count
    if head.crop is None:
        head, steps = _uncropped(steps)
    rest = steps[head.position :]
    start, levels = _tail(rest)
    is_float = head.levels.dtype != torch.uint8
    if is_float:
        start, levels = len(rest), head.levels
    # ToImage has changed the type for the steps in Python.
    python = [*head.wrapping, *rest[:start]] if start else []
    before = [
        step
        for place, step in enumerate(steps[: head.position + start])
        if (python and is_float) or place not in head.conversions
    ]
    return Pipeline(
        head.crop,
        head.flip,
        head.interpolation,
        head.antialias,
        tuple(head.policies),
        tuple(map(_adapted, python)),
        levels.format(),
        bool(python) and is_float,
        tuple(map(_adapted, rest[start:])),
        head.least,
        tuple(map(_adapted, before)) if head.least else (),
        tuple(head.names),
    )


class _Levels:
    """What conversions and Normalize make of uint8 images: (level / 255 - mean) / std in ``dtype``."""

    def __init__(self) -> None:
        self.dtype = torch.uint8
        self.mean: tuple[float, ...] = (0.0, 0.0, 0.0)
        self.std: tuple[float, ...] = (1.0, 1.0, 1.0)
        self._is_normalised = False
        self._unit = 1.0  # 255 for floating-point images of 0..255

    def format(self) -> PixelFormat | None:
        """Return the format of the images; None if they stay uint8."""
        return None if self.dtype == torch.uint8 else PixelFormat(self.mean, self.std, self.dtype)

    def absorb(self, step: Any) -> bool:
        """Whether the step is such a conversion; if so, remember it."""
        name = name_of(step)
        if name in CONVERSIONS:
            dtype = torch.float32 if name == "ToTensor" else step.dtype
            if self.dtype == torch.uint8 and dtype in _FLOATS and not getattr(step, "scale", True):
                self._unit, self.std = 255.0, (1 / 255,) * 3
            is_known = dtype in _FLOATS or dtype == self.dtype == torch.uint8
            self.dtype = dtype if is_known else self.dtype
            return is_known
        if name != "Normalize" or self.dtype == torch.uint8 or self._is_normalised:
            return name in _NOTHING
        given = (np.ravel(values).astype(float) for values in (step.mean, step.std))  # or numbers
        mean, std = ((values / self._unit).tolist() for values in given)
        mean, std = (values * 3 if len(values) == 1 else values for values in (mean, std))
        if len(mean) != 3 or len(std) != 3 or min(std) <= 0:
            return False
        self.mean, self.std, self._is_normalised = tuple(mean), tuple(std), True
        return True


class _Head:
    """The native steps at the beginning of a list: ``position`` is the first step that is not native."""

    def __init__(self, crop: Any, flip: float = 0.0, interpolation: str = "bilinear") -> None:
        self.crop, self.flip, self.interpolation, self.antialias = crop, flip, interpolation, True
        self.least: tuple[int, int] | None = None
        self.policies: list[Policy] = []
        self.levels = _Levels()
        self.conversions: set[int] = set()
        self.wrapping: list[Step] = []
        self.names: list[tuple[str, str]] = []
        self.position = 0

    def absorb(self, steps: list[Any]) -> int:
        """Return how many steps at ``position`` are native; 0 for none."""
        step, name = steps[self.position], name_of(steps[self.position])
        if name in _CROPS and self.crop is None:
            return self._absorb_crop(steps)
        note = "in the decoder"
        is_uint8 = self.levels.dtype == torch.uint8
        if isinstance(step, Policy) and self.crop is not None and is_uint8:
            self.policies.append(step)
            note = "on the batch"
        elif name == "RandomHorizontalFlip" and self.flip == 0 and 0 <= step.p <= 1 and not self.policies:
            # The centre of an odd number of pixels is another one after mirroring.
            if self.crop is None and "CenterCrop" in map(name_of, steps[self.position :]):
                return 0
            self.flip = float(step.p)
        elif not self.levels.absorb(step):
            return 0
        elif name in _NOTHING or (is_uint8 and self.levels.dtype == torch.uint8):
            note = "nothing to do"
            self.wrapping = [step] if name == "ToImage" else [] if name == "ToPureTensor" else self.wrapping
        else:
            self.conversions.add(self.position)
            if self.crop is None:
                note = "in the decoder, after the crop, where levels are rounded to whole numbers"
            elif self.policies:
                note = "on the batch, in one pass"
        self.names.append((shown_step(step), note))
        return 1

    def _absorb_crop(self, steps: list[Any]) -> int:
        step = steps[self.position]
        crop, method = _crop_of(step), _method(steps, self.position)
        if crop is None or method is None:
            return 0
        self.crop, (self.interpolation, self.antialias) = crop, method
        self.names.append((shown_step(step), "in the decoder, which decodes that part only"))
        if isinstance(crop, (RandomCrop, CenterCrop)):
            self.least = crop.size
        return 1


def _uncropped(steps: list[Any]) -> tuple[_Head, list[Any]]:
    """Return the head of a list that does not begin with a native crop, and the steps without it."""
    levels = _Levels()
    first = next((place for place, step in enumerate(steps) if not levels.absorb(step)), 0)
    resize, head = steps[first] if steps else None, _Head(FullImage())
    note = "the whole image, one at a time: no crop that the decoder can do comes first"
    head.names = [("decode", note)]
    if name_of(resize) == "Resize" and (shorter := _shorter(resize)) and (method := _method(steps, first)):
        head.crop, (head.interpolation, head.antialias) = FullImage(shorter), method
        note = "in the decoder, of the whole image, one at a time"
        note += ", where levels are rounded to whole numbers" * (levels.dtype != torch.uint8)
        crop = next((step for step in steps[first + 1 :] if name_of(step) not in _NOTHING), None)
        if name_of(crop) == "CenterCrop":
            size = f"{_pair(crop.size)}, shorter={shorter}"  # type: ignore[union-attr]
            note += f"; crop=tarpeg.CenterCrop({size}) decodes less, a box of whole pixels of the source"
        head.names = [(shown_step(resize), note)]
        before = (step for step in steps[:first] if name_of(step) not in _NOTHING - {"ToImage"})
        steps = [*before, *steps[first + 1 :]]
    return head, steps


def _crop_of(step: Any) -> Crop | None:
    """Return the crop of a step of torchvision; None for one that the decoder cannot do."""
    name = name_of(step)
    try:
        if name == "RandomResizedCrop":
            return RandomResizedCrop(_pair(step.size), tuple(step.scale), tuple(step.ratio))
        if name == "RandomCrop":
            return None if step.padding or step.pad_if_needed else RandomCrop(_pair(step.size))
        if name == "CenterCrop":
            return CenterCrop(_pair(step.size))
        if _shorter(step) is None and step.size is not None and step.max_size is None:
            return Whole(_pair(step.size))
    except ValueError:  # numbers that only torchvision takes
        pass
    return None


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return int(height), int(width)


def _shorter(step: Any) -> int | None:
    """Return the size of the shorter side of a Resize that has only that."""
    size = step.size
    if size is None or step.max_size is not None:
        return None
    if isinstance(size, int):
        return size
    return int(size[0]) if len(size) == 1 else None


def _method(steps: list[Step], position: int) -> tuple[str, bool] | None:
    """Return the interpolation of a step and whether it is antialiased; None if the decoder has it not.

    A list that makes tensors later takes PIL images, which are always antialiased, and of which "nearest" is
    the sample under the centre.
    """
    step: Any = steps[position]
    if not hasattr(step, "interpolation"):
        return "bilinear", True
    given = getattr(step.interpolation, "value", step.interpolation)
    mode = _BY_PILLOW.get(given, given) if isinstance(given, int) else given
    names = [name_of(each) for each in steps]
    takes_pil = not _FROM_PIL & {*names[:position]} and bool(_FROM_PIL & {*names[position:]})
    antialias = takes_pil or bool(getattr(step, "antialias", True))  # timm's have none
    if takes_pil and mode == "nearest":
        mode = "nearest-exact"
    if mode not in _INTERPOLATIONS or (mode in ("lanczos", "box") and not antialias):
        return None
    return mode, antialias or mode in ("nearest", "nearest-exact")


def _tail(steps: list[Step]) -> tuple[int, _Levels]:
    """Return where the conversions at the end begin, and what they make of uint8 images."""
    for start in range(len(steps)):
        levels = _Levels()
        if all(levels.absorb(step) for step in steps[start:]):
            return start, levels
    return len(steps), _Levels()


def _flattened(transform: Any) -> list[Step]:
    """Return the steps of nested compositions of torchvision and torch."""
    if name_of(transform) == "Compose":
        return [step for part in transform.transforms for step in _flattened(part)]
    if type(transform) is nn.Sequential:
        return [step for part in transform for step in _flattened(part)]
    is_step = callable(transform) or isinstance(transform, Policy)
    if isinstance(transform, type) or not is_step:
        hint = "; crops belong in crop=" * hasattr(transform, "boxes")
        hint = ", an instance, not a class" if is_step else hint
        raise ValueError(
            f"transform= or a step of it is {transform!r}: it must be a callable that takes a uint8 image "
            f"[3, H, W], such as torchvision's v2.Compose([...]){hint}"
        )
    return [transform]


def name_of(step: Any) -> str:
    """Return the name of a class of torchvision, or of timm's for the same; "" for all others."""
    kind = type(step)
    if kind.__module__ == "timm.data.transforms":
        return _OF_TIMM.get(kind.__name__, "")
    return kind.__name__ if kind.__module__.startswith("torchvision.transforms.") else ""


def shown_step(step: Any) -> str:
    """Return a step in one line."""
    name = getattr(step, "__qualname__", None) or type(step).__name__
    text = " ".join(repr(step).split()) if isinstance(step, nn.Module) or name_of(step) else name
    return text if len(text) <= 90 else f"{text[:87]}..."


# --- steps in Python


@dataclass(frozen=True)
class _Albumentations:
    """A composition or transform of Albumentations: takes arrays [H, W, 3] and returns a dict.

    Its generators are its own: ``seed`` replaces them, all by the same two, as its compositions share them.
    """

    step: Any

    def __call__(self, image: Tensor) -> Any:
        found = self.step(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(found, Tensor):  # by ToTensorV2
            return found
        array = found if found.ndim == 3 else found[..., None]
        return torch.from_numpy(np.ascontiguousarray(array)).permute(2, 0, 1)

    def seed(self, seed: int) -> None:
        if hasattr(self.step, "set_random_state"):  # old versions draw from the global ones
            self.step.set_random_state(np.random.default_rng(seed), random.Random(seed))


@dataclass(frozen=True)
class _FromPil:
    """ToTensor or PILToTensor, which may also get the tensor that the decoder made."""

    step: Any

    def __call__(self, image: Any) -> Any:
        if not isinstance(image, Tensor):
            return self.step(image)
        has_levels = name_of(self.step) == "ToTensor" and image.dtype == torch.uint8
        return image.float().div(255) if has_levels else image


@dataclass(frozen=True)
class _OnPil:
    """A step of timm on PIL images, as in timm: uint8 tensors [3, H, W] are converted before and after."""

    step: Any

    def __call__(self, image: Any) -> Any:
        if not isinstance(image, Tensor) or image.dtype != torch.uint8 or image.shape[:-2] != (3,):
            return self.step(image)
        found = self.step(Image.fromarray(image.permute(1, 2, 0).numpy()))
        is_image = isinstance(found, Image.Image)
        return torch.from_numpy(np.array(found)).permute(2, 0, 1) if is_image else found


@dataclass(frozen=True)
class _OnePolicy:
    """A policy of tarpeg between other steps: on one image, with draws of numpy's generator."""

    step: Policy

    def __call__(self, image: Tensor) -> Tensor:
        return run_policies([self.step], image[None], lambda _, count: np.random.random((1, count)))[0]


def _adapted(step: Any) -> Step:
    if isinstance(step, Policy):
        return _OnePolicy(step)
    if any(base.__module__.startswith("albumentations.core.") for base in type(step).__mro__):
        return _Albumentations(step)
    if name_of(step) in ("ToTensor", "PILToTensor"):
        return _FromPil(step)
    return _OnPil(step) if type(step).__module__ in _TIMM else step


def original(step: Any) -> Any:
    """Return a step in Python as the user gave it."""
    return step.step if isinstance(step, (_Albumentations, _FromPil, _OnPil, _OnePolicy)) else step


# Held by the thread whose steps draw: the generators belong to the whole process.
_generators = threading.RLock()
# The thread that holds it is not in a forked process.
os.register_at_fork(after_in_child=lambda: globals().update(_generators=threading.RLock()))


@contextlib.contextmanager
def own_generators() -> Iterator[Callable[[int, Sequence[Step]], None]]:
    """Yield a function that seeds the generators of torch (CPU), numpy and Python for a sample and its steps.

    The states of this process are restored at the end: a transform does not change what others draw. Tensors
    are made on the CPU and without gradients meanwhile, on one thread of torch: its sums over many floats
    depend on the number of threads, which is 1 in worker processes.
    """
    with _generators:
        states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
        threads = torch.get_num_threads()
        is_elsewhere = torch.get_default_device().type != "cpu"
        device = torch.device("cpu") if is_elsewhere else contextlib.nullcontext()
        try:
            torch.set_num_threads(1)
            with torch.no_grad(), device:
                yield _seed
        finally:
            torch.set_num_threads(threads)
            torch.default_generator.set_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])


def _seed(seed: int, steps: Sequence[Step]) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
    for step in steps:
        if isinstance(step, _Albumentations):
            step.seed(seed)


def run_steps(steps: Sequence[Step], image: Any, where: Callable[[], str]) -> Any:
    """Return the result of the steps for a uint8 image [3, H, W]; ``where`` describes its sample.

    Raises TransformError if one of them raises.
    """
    for number, step in enumerate(steps):
        try:
            result = step(image)
        except Exception as error:
            text = " ".join(str(error).split()).rstrip(".")
            hint = _PIL_HINT if any(part in text for part in _OF_ARRAYS) else ""
            hint = _FLOAT_HINT if "float tensor" in text else hint
            raise TransformError(
                f"{where()}: transform= failed in {shown_step(original(step))}, step {number + 1} of the "
                f"{len(steps)} in Python, on {described(image)}: {type(error).__name__}: {text[:500]}.{hint}"
            ) from error
        image = result
    return image


def described(value: Any) -> str:
    """Return type and shape of what a step takes or returns."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    shape = getattr(value, "shape", None) or getattr(value, "size", None)
    return f"a {type(value).__name__}" + (f" of {shape}" if isinstance(shape, tuple) else "")


# --- what the steps make of an image


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
        remedy = "End it with a crop or a resize to a fixed size, such as v2.CenterCrop(224)."
        if not isinstance(result, Tensor) or result.dtype != self.dtype:
            step = "ToDtype(torch.float32, scale=True)" if isinstance(result, Tensor) else "PILToTensor()"
            remedy = f"Have all its branches return one type: end it with v2.{step}."
        wanted = described(torch.empty(self.shape, dtype=self.dtype, device="meta"))
        raise TransformError(
            f"{where()}: transform= returned {described(result)}, and {wanted} for the first sample: the "
            f"results of all samples must have one type and one shape. {remedy}"
        )


def outcome_of(pipeline: Pipeline, image: Tensor, where: Callable[[], str], seed: int) -> Outcome:
    """Run a pipeline on its first image, uint8 ``[3, H, W]``, to see what it returns.

    Raises TransformError if a step raises or the result is not a tensor of uint8 or floats. Warns if equal
    seeds give different results.
    """
    start = prepared(pipeline, image[None])[0]
    with own_generators() as seed_all:

        def run(steps: tuple[Step, ...]) -> Any:
            seed_all(seed, steps)
            return run_steps(steps, start.clone(), where)

        result = run(pipeline.python)
        found = Outcome(pipeline, result.dtype, tuple(result.shape)) if isinstance(result, Tensor) else None
        if pipeline.tail and not (found and found.is_rgb):
            pipeline = replace(pipeline, python=pipeline.python + pipeline.tail, tail=(), levels=None)
            result = run(pipeline.python)
        is_image = isinstance(result, Tensor) and (result.dtype == torch.uint8 or result.is_floating_point())
        if not is_image or not result.numel():
            remedy = _REMEDIES.get(type(result), _REMEDIES[object])
            remedy = "Convert it with image.to(torch.uint8)." if isinstance(result, Tensor) else remedy
            remedy = "Give its crop or resize a size of at least 1." if is_image else remedy
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
    """Return images ``[B, 3, H, W]`` as the steps in Python get them; ``is_whole``: before conversions."""
    levels = pipeline.levels if pipeline.levels_first and not is_whole else None
    if pipeline.takes_planes:
        out = torch.empty(images.shape, dtype=levels.dtype if levels else torch.uint8, device="cpu")
        return normalised(images, levels or PixelFormat(), out)
    return normalised(images, levels) if levels else images


def normalised(images: Tensor, levels: PixelFormat | None, out: Tensor | None = None) -> Tensor:
    """Return uint8 images ``[B, 3, H, W]`` in the format ``levels``; into ``out`` if given."""
    # Importing ops.augment loads the native library; importing this module must not.
    from ..ops.augment import augment_batch

    assert levels is not None
    return augment_batch(images, mean=levels.mean, std=levels.std, dtype=levels.dtype, out=out)

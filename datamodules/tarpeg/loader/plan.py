"""Native and Python steps of a split's views, with their costs."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from ..augment.policies import (
    AugMix,
    AutoAugment,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    Policy,
    RandAugment,
    Solarize,
    TrivialAugmentWide,
    run_policies,
)
from ..sampling.crops import CenterCrop, RandomCrop, RandomResizedCrop, Whole, crop_at
from .transform import (
    CONVERSIONS,
    FullImage,
    Pipeline,
    TransformError,
    name_of,
    normalised,
    original,
    outcome_of,
    own_generators,
    prepared,
    run_steps,
    shown_step,
)

# Runs of which the steps in Python are timed; images and pixels, at most, of a batch that is timed; the least
# size of the JPEG and of the images that steps on whole images get.
_RUNS = 10
_BATCH, _MOST_PIXELS = 64, 1 << 22
_HEIGHT_WIDTH = 375, 500
# Policies of tarpeg for transforms of torchvision, with the arguments that both have.
_POLICIES: dict[str, tuple[type[Policy], str]] = {
    "RandAugment": (RandAugment, "num_ops magnitude num_magnitude_bins interpolation"),
    "TrivialAugmentWide": (TrivialAugmentWide, "num_magnitude_bins interpolation"),
    "AutoAugment": (AutoAugment, "policy interpolation"),
    "AugMix": (AugMix, "severity mixture_width chain_depth alpha all_ops interpolation"),
    "GaussianBlur": (GaussianBlur, "kernel_size sigma"),
    "ColorJitter": (ColorJitter, "brightness contrast saturation hue"),
    "RandomGrayscale": (Grayscale, ""),
    "RandomSolarize": (Solarize, "threshold"),
}
# The same for classes of timm.
_NATIVE_FOR_TIMM = {
    "RandomResizedCropAndInterpolation": "interpolation='bicubic', not 'random', is done in the decoder",
    "RandAugment": "tarpeg.TimmRandAugment('rand-...'), in transform= or Augment(policy=...), is native",
    "AutoAugment": "for '3a', tarpeg.ThreeAugment(), in transform= or Augment(policy=...), is native",
    "RandomErasing": "tarpeg.Augment(erase=tarpeg.Erase(..., pixels=True)) is native, and normalises",
}
# Steps of torchvision without a policy.
_NATIVE = {
    "RandomErasing": "tarpeg.Augment(erase=tarpeg.Erase(...)) is native, and normalises",
    "ImageClassification": "v2.Compose of its Resize, CenterCrop, ToDtype and Normalize is resized in the "
    "decoder",
}


@dataclass(frozen=True)
class PlannedStep:
    """A step of a plan. ``us``: processor time in microseconds per image, if it was measured."""

    step: str
    is_native: bool
    note: str = ""
    us: float | None = None

    def __str__(self) -> str:
        cost = "" if self.us is None else f"{self.us:,.0f} us per image"
        notes = "; ".join(part for part in (cost, self.note) if part)
        return f"  {'native' if self.is_native else 'Python'}  {self.step}" + f": {notes}" * bool(notes)


@dataclass(frozen=True)
class Plan:
    """Native and Python steps of each view, in order; one line per step."""

    views: tuple[tuple[PlannedStep, ...], ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for steps in dict.fromkeys(self.views):
            same = [str(number) for number, view in enumerate(self.views) if view == steps]
            if len(same) < len(self.views):
                lines.append(f"view{'s' * (len(same) > 1)} {', '.join(same)}")
            lines += map(str, steps)
        return "\n".join(lines)


def plan_of(
    pipelines: Sequence[Pipeline], fidelity: str, channels: int, *, measure: bool, native: bool = True
) -> Plan:
    """Return the plan of a split's views.

    ``measure``: time the steps on a synthetic image; ``native``: the native ones, too.
    """
    known: dict[tuple[object, ...], tuple[PlannedStep, ...]] = {}
    views = []
    for pipeline in pipelines:
        settings = (pipeline.crop, pipeline.flip, pipeline.interpolation, pipeline.antialias, pipeline.levels)
        numbers = map(id, (*pipeline.python, *pipeline.tail))
        key = (repr((settings, pipeline.policies, pipeline.head)), *numbers)
        if key not in known:
            known[key] = tuple(_planned(pipeline, fidelity, channels, measure, measure and native))
        views.append(known[key])
    return Plan(tuple(views))


def _planned(
    pipeline: Pipeline, fidelity: str, channels: int, measure: bool, native: bool
) -> Iterator[PlannedStep]:
    times: list[float | None] = [None] * len(pipeline.python)
    failure, is_run = "", not pipeline.python
    image = _photograph(pipeline) if measure else None
    if image is not None and pipeline.python:
        try:
            pipeline = outcome_of(pipeline, image, lambda: "a synthetic image", 0).pipeline
            is_run, times = True, [*_times(pipeline, image)]
        except TransformError as error:  # it may take images of one size only
            failure = f"not measured: {error}"
    size = "; the times below are of {1}x{0} pixels, and grow with their number".format(*_HEIGHT_WIDTH)
    is_timed_whole = pipeline.crop == FullImage() and times[:1] not in ([], [None])
    decoding = _decoder_time(pipeline, fidelity, channels) if native else None
    batch = _batch_of(image) if native and image is not None else None
    normalising = _normalising_time(pipeline, batch) if batch is not None and is_run else None
    policies = iter(pipeline.policies)
    for text, note in pipeline.head:
        us: float | None = None
        if pipeline.levels_first and text.partition("(")[0] in (*CONVERSIONS, "Normalize"):
            note = "on the batch, in one pass"
        if note == "on the batch":
            us = _policy_time(next(policies), batch) if batch is not None else None
        elif note == "on the batch, in one pass":
            us, normalising = normalising, None
        elif decoding is not None and ("decode" in note or "whole image" in note):
            jpeg = "an ordinary JPEG of at least {1}x{0}".format(*_HEIGHT_WIDTH)
            note = f"for all that the decoder does, of {jpeg}; {note}"
            us, decoding = decoding, None
        yield PlannedStep(text, True, note + size * is_timed_whole, us)
    for number, (step, us) in enumerate(zip(pipeline.python, times, strict=True)):
        text, note = shown_step(original(step)), _faster(step, None if us is None else image)
        if number == 0 and name_of(step) == "ToImage" and text in dict(pipeline.head):
            note = "again, for the type that the steps in Python get"
        note = "; ".join(part for part in (note, failure) if part)
        failure = "not measured" * bool(failure)  # the reason is the same for all
        yield PlannedStep(text, False, note, us)
    for step in pipeline.tail:
        note = "one pass over the batch, with all that follow" if pipeline.levels else "nothing to do"
        note += "" if is_run else ", if the steps before return uint8 [3, H, W]"
        yield PlannedStep(shown_step(original(step)), True, note, normalising)
        normalising = None


def _faster(step: Any, image: Tensor | None) -> str:
    """Return the policy of tarpeg that does the same, and its cost on ``image``; "" if there is none."""
    if (kind := type(original(step))).__module__.startswith("timm.data."):
        return _NATIVE_FOR_TIMM.get(kind.__name__, "")
    if (policy := _policy_of(step)) is None:
        return _NATIVE.get(name_of(step), "")
    cost = "is native" if image is None else f"takes about {_policy_time(policy, _batch_of(image)):,.0f} us"
    return f"tarpeg.{type(policy).__name__}, in transform= or Augment(policy=...), {cost}"


def _policy_of(step: Any) -> Policy | None:
    """Return the policy of tarpeg that does the same as a step of torchvision; None if there is none."""
    parts = step.transforms if name_of(step) == "RandomApply" else [step]
    kind, names = _POLICIES.get(name_of(parts[0]) if len(parts) == 1 else "", (None, ""))
    if kind is None:
        return None
    given = {name: getattr(parts[0], name) for name in names.split()}
    given = {name: getattr(each, "value", each) for name, each in given.items() if each is not None}
    chances = [part.p for part in {step, parts[0]} if hasattr(part, "p")]
    given |= {"probability": math.prod(chances)} if chances else {}
    if len({*(sides := given.get("kernel_size", ()))}) == 1:
        given["kernel_size"] = sides[0]
    try:
        return kind(**given)
    except (TypeError, ValueError):  # arguments that only torchvision has
        return None


def _policy_time(policy: Policy, images: Tensor) -> float:
    """Processor time of a policy per image, in microseconds, on one thread."""
    draws = np.random.default_rng(0)
    run = partial(run_policies, [policy], images, lambda _, count: draws.random((len(images), count)))
    return _batch_time(run, len(images))


def _normalising_time(pipeline: Pipeline, images: Tensor) -> float | None:
    """Processor time of the pass that normalises, per image, in microseconds; None without one."""
    if pipeline.levels is None:
        return None
    out = normalised(images, pipeline.levels)
    return _batch_time(partial(normalised, images, pipeline.levels, out), len(images))


def _batch_of(image: Tensor) -> Tensor:
    """Return a batch as the loader has it, of at most 64 images."""
    images = image.expand(_count(*image.shape[1:]), *image.shape)
    return images.contiguous(memory_format=torch.channels_last)


def _count(height: int, width: int) -> int:
    return max(1, min(_BATCH, _MOST_PIXELS // (height * width)))


def _decoder_time(pipeline: Pipeline, fidelity: str, channels: int) -> float | None:
    """Processor time of decoding a JPEG for a view, in microseconds; None for a crop of the user's own."""
    from ..ops.decode import decode_batch  # loads the native library, which this module must not

    crop = pipeline.crop if isinstance(pipeline.crop, FullImage) else crop_at(pipeline.crop, 0)
    if type(crop) not in (FullImage, RandomResizedCrop, RandomCrop, CenterCrop, Whole):
        return None
    height, width = (max(pair) for pair in zip(_HEIGHT_WIDTH, crop.size, strict=True))
    size = crop.target(height, width) if isinstance(crop, FullImage) else crop.size
    count = _count(*size)
    content, image = io.BytesIO(), _synthetic(height, width).movedim(0, -1).numpy()
    Image.fromarray(image).save(content, "JPEG", quality=90)
    # Of their own: views of one file would share its decoding.
    jpegs = [torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8) for _ in range(count)]
    draws = np.random.default_rng(0).random((count, crop.draws))
    boxes = torch.from_numpy(crop.boxes(np.array([[height, width]] * count, np.int32), draws))
    options: dict[str, Any] = {"interpolation": pipeline.interpolation, "antialias": pipeline.antialias}
    if pipeline.levels and not pipeline.runs_python and not pipeline.policies:
        options |= {name: getattr(pipeline.levels, name) for name in ("mean", "std", "dtype")}
    options |= {"fidelity": fidelity, "channels": channels, "threads": 1}
    flips = torch.arange(count) % 2 == 0 if pipeline.flip else None
    options["out"] = decode_batch(jpegs, boxes, size, flips, **options)[0]
    return _batch_time(partial(decode_batch, jpegs, boxes, size, flips, **options), count)


def _batch_time(work: Callable[[], object], count: int) -> float:
    """Processor time of work on a batch of ``count`` per image, in microseconds, on one thread."""
    times = []
    with own_generators():  # one thread of torch
        for _ in range(4):
            begin = time.thread_time()
            work()
            times.append(time.thread_time() - begin)
    return 1e6 / count * float(np.median(times[1:]))


def _photograph(pipeline: Pipeline) -> Tensor:
    """Return what the decoder makes of a synthetic photograph, uint8 ``[3, H, W]``."""
    crop = pipeline.crop
    return _synthetic(
        *(crop.target(*_HEIGHT_WIDTH) if isinstance(crop, FullImage) else crop_at(crop, 0).size)
    )


def _synthetic(height: int, width: int) -> Tensor:
    """Return soft shapes and a little noise, uint8 ``[3, H, W]``."""
    noise = np.random.default_rng(0)
    coarse = torch.from_numpy(noise.uniform(0, 255, (1, 3, 8, 8)))
    soft = nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]
    levels = soft + torch.from_numpy(noise.normal(0, 4, (3, height, width)))
    return levels.clamp(0, 255).byte().movedim(0, -1).contiguous().movedim(-1, 0)


def _times(pipeline: Pipeline, image: Tensor) -> npt.NDArray[np.float64]:
    """Mean processor time of each step in Python, in microseconds, over runs with other random numbers."""
    totals = np.zeros(len(pipeline.python))
    start = prepared(pipeline, image[None])[0]
    with own_generators() as seed_all:
        for run in range(_RUNS):
            seed_all(run, pipeline.python)
            value: Any = start.clone()
            for number, step in enumerate(pipeline.python):
                begin = time.thread_time()  # other processes do not count
                value = run_steps([step], value, lambda: "a synthetic image")
                totals[number] += time.thread_time() - begin
    return totals / _RUNS * 1e6

"""Native and Python steps of a split's views, with their costs."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from .adapters import Albumentations, original
from .generators import own_generators
from .pipeline import NativeStep, Pipeline, Place, Uncropped
from .pixels import normalised
from .results import TransformError, outcome_of, prepared, run_steps
from .torchvision import is_v2, name_of, shown_step

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


# The words of the places of native steps.
_WORDS = {
    Place.DECODER: "in the decoder",
    Place.WHOLE_IMAGE: "the whole image, one at a time: no crop that the decoder can do comes first",
    Place.RESIZED_IMAGE: "in the decoder, of the whole image, one at a time",
    Place.BATCH: "on the batch",
    Place.FINAL_PASS: "on the batch, in one pass",
    Place.NOTHING: "nothing to do",
}
_ON_DEVICE = "in the decoder on the device of the batch, from the tiles that workers gather"
_DECODED = (Place.DECODER, Place.WHOLE_IMAGE, Place.RESIZED_IMAGE)


@dataclass(frozen=True)
class PlannedStep:
    """A step of a plan.

    Attributes:
        step: The step as the user wrote it.
        is_native: The decoder or the batch does it.
        note: Remark about it.
        us: Processor time in microseconds per image, if it was measured.
    """

    step: str
    is_native: bool
    note: str = ""
    us: float | None = None

    def __str__(self) -> str:
        cost = "" if self.us is None else f"{self.us:,.0f} us per image"
        notes = "; ".join(part for part in (cost, self.note) if part)
        line = f"  {'native' if self.is_native else 'Python'}  {self.step}"
        return f"{line}: {notes}" if notes else line


@dataclass(frozen=True)
class Plan:
    """Native and Python steps of each view, in order; one line per step."""

    views: tuple[tuple[PlannedStep, ...], ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for steps in dict.fromkeys(self.views):
            same = [str(number) for number, view in enumerate(self.views) if view == steps]
            if len(same) < len(self.views):
                title = "view" if len(same) == 1 else "views"
                lines.append(f"{title} {', '.join(same)}")
            lines += map(str, steps)
        return "\n".join(lines)


Example = Callable[[tuple[int, int]], dict[str, Any]]
"""Returns a target of an image of (height, width), see ``moving``."""


def plan_of(
    pipelines: Sequence[Pipeline],
    fidelity: str,
    channels: int,
    *,
    measure: bool,
    native: bool = True,
    decodes_on_device: bool = False,
    example: Example | None = None,
) -> Plan:
    """Return the plan of a split's views.

    Args:
        pipelines: Pipeline of each view.
        fidelity: "fast" or "exact".
        channels: 3 or 1.
        measure: Time the steps on a synthetic image.
        native: Time the native steps, too.
        decodes_on_device: Whether images are decoded where the batch arrives, which is not timed.
        example: Of a split with targets.
    """
    known: dict[tuple[object, ...], tuple[PlannedStep, ...]] = {}
    views = []
    for pipeline in pipelines:
        settings = (pipeline.crop, pipeline.flip, pipeline.interpolation, pipeline.antialias, pipeline.levels)
        numbers = map(id, (*pipeline.python, *pipeline.tail))
        key = (repr((settings, pipeline.policies, pipeline.head)), *numbers)
        if key not in known:
            own = example if pipeline.moves_targets_in_python else None
            costs = _unknown(pipeline)
            if measure:
                costs = _costs_of(pipeline, fidelity, channels, native=native, example=own)
            steps = _python_steps(costs, has_targets=own is not None)
            first = _native_steps(costs)
            if decodes_on_device:
                is_refused = bool(pipeline.python or pipeline.policies or pipeline.levels)
                first = (_on_device(step, is_refused=is_refused) for step in first)
            known[key] = (*first, *steps, *_final_steps(costs))
        views.append(known[key])
    return Plan(tuple(views))


@dataclass(frozen=True)
class _Costs:
    """Processor times of a pipeline in microseconds per image; None where they are unknown.

    Attributes:
        pipeline: As planned: what its steps in Python return is known if they ran.
        python: Of each step in Python.
        policies: Of each policy on the batch.
        decoding: Of all that the decoder does.
        normalising: Of the final pass over the batch.
        image: A decoded image; None if nothing was measured.
        has_run: The steps in Python ran, or there are none.
        failure: Why the steps in Python were not measured.
    """

    pipeline: Pipeline
    python: Sequence[float | None]
    policies: Sequence[float | None]
    decoding: float | None = None
    normalising: float | None = None
    image: Tensor | None = None
    has_run: bool = False
    failure: str = ""


def _unknown(pipeline: Pipeline) -> _Costs:
    """Return costs of which nothing was measured."""
    python = [None] * len(pipeline.python)
    return _Costs(pipeline, python, [None] * len(pipeline.policies), has_run=not pipeline.python)


def _costs_of(
    pipeline: Pipeline, fidelity: str, channels: int, *, native: bool, example: Example | None
) -> _Costs:
    """Measure a pipeline on a synthetic image; the native steps only if ``native``."""
    image = _photograph(pipeline)
    costs = replace(_unknown(pipeline), image=image)
    if pipeline.python:
        try:
            pipeline = outcome_of(pipeline, image, lambda: "a synthetic image", 0, example).pipeline
            costs = replace(
                costs, pipeline=pipeline, python=[*map(float, _times(pipeline, image, example))], has_run=True
            )
        except TransformError as error:  # it may take images of one size only
            costs = replace(costs, failure=f"not measured: {error}")
    if not native:
        return costs
    batch = _batch_of(image)
    return replace(
        costs,
        policies=[_policy_time(policy, batch) for policy in pipeline.policies],
        decoding=_decoder_time(pipeline, fidelity, channels),
        normalising=_normalising_time(pipeline, batch) if costs.has_run else None,
    )


def _native_steps(costs: _Costs) -> Iterator[PlannedStep]:
    """Yield the native steps at the beginning."""
    height, width = _HEIGHT_WIDTH
    policies = iter(costs.policies)
    decoding, normalising = costs.decoding, costs.normalising
    is_timed_whole = costs.pipeline.crop == Uncropped() and any(us is not None for us in costs.python[:1])
    for native in costs.pipeline.head:
        us: float | None = None
        note = _note_of(native)
        if native.place is Place.BATCH:
            us = next(policies)
        elif native.place is Place.FINAL_PASS:
            us, normalising = normalising, None  # once, for all the steps of the pass
        elif native.place in _DECODED and decoding is not None:
            note = f"for all that the decoder does, of an ordinary JPEG of at least {width}x{height}; {note}"
            us, decoding = decoding, None
        if is_timed_whole:
            note += f"; the times below are of {width}x{height} pixels, and grow with their number"
        yield PlannedStep(native.step, True, note, us)


def _on_device(step: PlannedStep, *, is_refused: bool) -> PlannedStep:
    """Return a step of the decoder as it is where the batch arrives; or why it cannot be there."""
    note = f"{step.note}; decode='device' refuses a split with such steps" if is_refused else _ON_DEVICE
    return replace(step, note=note, us=None)


def _note_of(native: NativeStep) -> str:
    """Return the place of a native step in words, and its own remarks."""
    note = _WORDS[native.place]
    if native.note:
        note += f", {native.note}"
    if native.hint:
        note += f"; {native.hint}"
    return note


def _python_steps(costs: _Costs, *, has_targets: bool) -> Iterator[PlannedStep]:
    """Yield the steps in Python, which may get the targets too."""
    native = [step.step for step in costs.pipeline.head]
    failure = costs.failure
    for number, (step, us) in enumerate(zip(costs.pipeline.python, costs.python, strict=True)):
        text = shown_step(original(step))
        note = _faster(step, None if us is None else costs.image)
        if number == 0 and name_of(step) == "ToImage" and text in native:
            note = "again, for the type that the steps in Python get"
        if has_targets and (is_v2(step) or isinstance(step, Albumentations)):
            note = f"with the targets{'; ' * bool(note)}{note}"
        if failure:
            note = f"{note}; {failure}" if note else failure
            failure = "not measured"  # the reason is the same for all
        yield PlannedStep(text, False, note, us)


def _final_steps(costs: _Costs) -> Iterator[PlannedStep]:
    """Yield the native steps after those in Python."""
    note = "one pass over the batch, with all that follow" if costs.pipeline.levels else _WORDS[Place.NOTHING]
    if not costs.has_run:
        note += ", if the steps before return uint8 [3, H, W]"
    us = costs.normalising
    for step in costs.pipeline.tail:
        yield PlannedStep(shown_step(original(step)), True, note, us)
        us = None  # once, for all the steps of the pass


def _faster(step: Any, image: Tensor | None) -> str:
    """Return the policy of tarpeg that does the same, and its cost on ``image``; "" if there is none."""
    kind = type(original(step))
    if kind.__module__.startswith("timm.data."):
        return _NATIVE_FOR_TIMM.get(kind.__name__, "")
    policy = _policy_of(step)
    if policy is None:
        return _NATIVE.get(name_of(step), "")
    cost = "is native"
    if image is not None:
        cost = f"takes about {_policy_time(policy, _batch_of(image)):,.0f} us"
    return f"tarpeg.{type(policy).__name__}, in transform= or Augment(policy=...), {cost}"


def _policy_of(step: Any) -> Policy | None:
    """Return the policy of tarpeg that does the same as a step of torchvision; None if there is none."""
    parts = step.transforms if name_of(step) == "RandomApply" else [step]
    if len(parts) != 1 or name_of(parts[0]) not in _POLICIES:
        return None
    kind, names = _POLICIES[name_of(parts[0])]
    given: dict[str, Any] = {}
    for name in names.split():
        value = getattr(parts[0], name)
        if value is not None:
            given[name] = getattr(value, "value", value)  # the name of an enum's member
    chances = [part.p for part in {step, parts[0]} if hasattr(part, "p")]
    if chances:
        given["probability"] = math.prod(chances)
    sides = given.get("kernel_size", ())
    if len(set(sides)) == 1:
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

    crop = pipeline.crop if isinstance(pipeline.crop, Uncropped) else crop_at(pipeline.crop, 0)
    if type(crop) not in (Uncropped, RandomResizedCrop, RandomCrop, CenterCrop, Whole):
        return None
    if fidelity == "exact" and isinstance(crop, CenterCrop) and crop.shorter:
        return None  # resized by torch
    height, width = (max(pair) for pair in zip(_HEIGHT_WIDTH, crop.size, strict=True))
    size = crop.target(height, width) if isinstance(crop, Uncropped) else crop.size
    count = _count(*size)
    content, image = io.BytesIO(), _synthetic(height, width).movedim(0, -1).numpy()
    Image.fromarray(image).save(content, "JPEG", quality=90)
    # Of their own: views of one file would share its decoding.
    jpegs = [torch.frombuffer(bytearray(content.getvalue()), dtype=torch.uint8) for _ in range(count)]
    draws = np.random.default_rng(0).random((count, crop.draws))
    found = crop.boxes(np.array([[height, width]] * count, np.int32), draws)
    if found.shape[1] != 4:  # it pads
        return None
    boxes = torch.from_numpy(found)
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
    if isinstance(pipeline.crop, Uncropped):
        height, width = pipeline.crop.target(*_HEIGHT_WIDTH)
    else:
        height, width = crop_at(pipeline.crop, 0).size
    return _synthetic(height, width)


def _synthetic(height: int, width: int) -> Tensor:
    """Return soft shapes and a little noise, uint8 ``[3, H, W]``."""
    noise = np.random.default_rng(0)
    coarse = torch.from_numpy(noise.uniform(0, 255, (1, 3, 8, 8)))
    soft = nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]
    levels = soft + torch.from_numpy(noise.normal(0, 4, (3, height, width)))
    return levels.clamp(0, 255).byte().movedim(0, -1).contiguous().movedim(-1, 0)


def _times(pipeline: Pipeline, image: Tensor, example: Example | None) -> npt.NDArray[np.float64]:
    """Mean processor time of each step in Python, in microseconds, over runs with other random numbers.

    The same runs come before, without a clock: what a step does first for such numbers may take longer.
    """
    totals = np.zeros(len(pipeline.python))
    start = prepared(pipeline, image[None])[0]
    with own_generators() as seed_all:
        for run in (*range(_RUNS), *range(_RUNS)):
            totals *= run != 0
            seed_all(run, pipeline.python)
            value: Any = start.clone()
            target = None if example is None else example((start.shape[-2], start.shape[-1]))
            for number, step in enumerate(pipeline.python):
                begin = time.thread_time()  # other processes do not count
                value = run_steps([step], value, lambda: "a synthetic image", target)
                totals[number] += time.thread_time() - begin
    return totals / _RUNS * 1e6

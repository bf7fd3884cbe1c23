"""Augmentation of a batch: in the worker that decodes it, or where the batch arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from ..augment.geometry import affine_and_steps
from ..augment.mixing import Mix
from ..augment.module import Augment
from ..sampling import rng
from ..sampling.geometry import View
from ..sampling.sampler import Request
from ..transforms.generators import seeded, states
from ..transforms.pixels import PixelFormat
from ..transforms.results import described
from .batch import TARGET_BATCHES, AnyBatch, Images, RaggedImages, by_size, of_sizes
from .naflex import columns_of, with_columns
from .split import Split

# Stream of random numbers, beside those of loader.fetch and loader.python_steps: seeds of other modules.
_MODULE = 3
# Batches over which a module was not random in evaluation mode.
_FIXED: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_CHECKED_BATCHES = 4  # a module with a generator of its own may draw alike in the first passes


def uncompiled(module: Any) -> Any:
    """Return the module that torch.compile was given; any other object as it is."""
    return getattr(module, "_orig_mod", module)


def modules_of(augment: nn.Module | None) -> list[nn.Module]:
    """Return the modules of ``augment``: one per view of a list of them, otherwise at most one."""
    if augment is None:
        return []
    return list(augment) if isinstance(augment, nn.ModuleList) else [augment]


def mixes_of(augment: nn.Module | None) -> list[Mix]:
    """Return what mixes images and labels in the modules of ``augment``."""
    plain = (module for module in map(uncompiled, modules_of(augment)) if isinstance(module, Augment))
    return [module.mix for module in plain if module.mix is not None]


def contains_augment(augment: nn.Module | None) -> bool:
    """Whether one of the modules is a ``tarpeg.Augment``, which takes uint8 images and normalises them."""
    return any(isinstance(uncompiled(module), Augment) for module in modules_of(augment))


def augment_on_arrival(
    augment: nn.Module,
    batch: AnyBatch,
    seed: int,
    request: Request | None,
    *,
    is_augmented: bool,
    views: Sequence[Sequence[int]] | None = None,
    repeats: int = 1,
    evaluates: bool = False,
) -> AnyBatch:
    """Augment a batch, its images a tensor or a list of tensors, as drawn for ``request``.

    Targets were moved by the worker, see ``PixelFormat.moves``.

    Args:
        augment: A module for all views, or a ``ModuleList`` of one per view.
        batch: The batch.
        seed: Seed of the distortions.
        request: The request for the batch; None: without distortions.
        is_augmented: Whether the loader delivered floating-point images, to whatever type they were cast
            since, that need nothing more.
        views: Numbers of the views of each size, see ``Split.view_groups``; None: in the order of the images.
        repeats: Repeats of the split.
        evaluates: Whether ``augment`` will run in evaluation mode too.

    Raises:
        ValueError: If the batch is not of as many samples as the request, or not of these views, and for a
            module that is random in evaluation mode.
    """
    if isinstance(batch.image, dict):  # sequences of patches, see check_split
        images = augment(columns_of(batch.image))
        sequences: Any = with_columns(batch.image, images)
        return batch._replace(image=sequences)
    if isinstance(batch.image, RaggedImages):
        flat = batch.image.images
        flat = flat if is_augmented and flat.is_floating_point() else augment(flat)
        return batch._replace(image=batch.image._replace(images=flat))
    parts = by_size(batch.image)
    plain = [module for module in map(uncompiled, modules_of(augment)) if isinstance(module, Augment)]
    drawn = request if augment.training else None
    request = drawn if plain else None
    needs_numbers = request is not None or isinstance(augment, nn.ModuleList)
    groups = _numbers(augment, parts, views if needs_numbers else None)
    if request is not None:
        _check_count(batch, parts[0].shape[-4], len(request.ids))

    def augment_part(module: nn.Module, images: Tensor, numbers: Sequence[int], _: Tensor | None) -> Tensor:
        own = uncompiled(module)  # also then the draws are functions of the samples
        if not isinstance(own, Augment):
            if evaluates or not augment.training:
                _check_evaluation(module, images)
            with nullcontext() if drawn is None else seeded(_seed(seed, drawn, numbers), images.device):
                other: Tensor = module(images)
            if not isinstance(other, Tensor) or other.shape[:1] != images.shape[:1]:
                raise _unfit(own, images, other)
            return other
        params = []
        if request is not None and own.is_random:
            params.append(params_of(own, images.shape[-2:], seed, request, numbers))
        result: Tensor = module(images, *params)
        return result

    images = [
        part if is_augmented and part.is_floating_point() else _on_views(augment_part, augment, part, numbers)
        for part, numbers in zip(parts, groups, strict=True)
    ]
    image = of_sizes(images)
    if request is None:
        return batch._replace(image=image)
    mixing = next((module for module in plain if module.mix is not None), None)
    if isinstance(batch, TARGET_BATCHES):
        if mixing is not None:
            raise ValueError(
                f"augment= mixes labels, {mixing.mix!r}, but the split has targets= and no labels"
            )
        return batch._replace(image=image)
    if mixing is None:
        return batch._replace(image=image)
    image, label = _mixed(mixing, image, batch.label, seed, request, repeats)
    return batch._replace(image=image, label=label)


def _seed(seed: int, request: Request, views: Sequence[int]) -> int:
    """Return the seed of a module for a batch: a function of its first sample."""
    occurrence = np.zeros(1, np.int64) if request.occurrence is None else request.occurrence[:1]
    first = rng.first_draw(occurrence, views[0])
    return int(rng.uniforms(seed, request.epoch, request.ids[:1], 1, _MODULE, first)[0, 0] * 2**53)


def _check_evaluation(module: nn.Module, images: Tensor) -> None:
    """Raise ValueError if a module is random in evaluation mode: it would distort validation.

    It draws from the global generators then, or two passes over the batch differ.
    """
    if not len(images):  # predictions leave out broken images, perhaps all of a batch
        return
    if _FIXED.get(module, 0) == _CHECKED_BATCHES:
        return
    # Parts of a module may be in another mode than the whole.
    modes, results = [(part, part.training) for part in module.modules()], []
    is_drawn = False
    module.eval()
    try:
        with torch.no_grad():
            for seed in (1, 2):
                with seeded(seed, images.device):
                    before = states(images.device)
                    result = module(images.clone())
                    is_drawn |= states(images.device) != before
                    if not isinstance(result, Tensor):
                        raise _unfit(uncompiled(module), images, result)
                    results.append(result.double())
    finally:
        for part, mode in modes:
            part.training = mode
    one, other = results
    # Sums on a GPU depend on the order of its threads in the last digits.
    limit = 1e-3 * float(one.abs().max())
    differ = one.shape != other.shape or not torch.allclose(one, other, rtol=1e-3, atol=limit, equal_nan=True)
    if differ or is_drawn:
        reason = "two passes over a batch differ" if differ else "it draws random numbers"
        raise ValueError(
            f"augment={type(uncompiled(module)).__name__} is random in evaluation mode too: {reason}, so it "
            "would distort the images of validation. Give random steps to the training split, "
            "Split(transform=...); or give a torch.nn.Module of your own that distorts only in training: "
            "return self.distort(images) if self.training else images"
        )
    _FIXED[module] = _FIXED.get(module, 0) + 1


def _unfit(module: nn.Module, images: Tensor, result: Any) -> ValueError:
    """Return the error of a module whose result has no image per image."""
    name = type(module).__name__
    return ValueError(
        f"augment={name} returned {described(result)} for {described(images)}: {name}.forward(images) must "
        f"return a tensor of {len(images)} images [{len(images)}, ...], one per image and in their order"
    )


def _check_count(batch: AnyBatch, images: int, delivered: int) -> None:
    """Raise ValueError if a hook has removed samples: which ones the others are is then unknown."""
    if isinstance(batch, TARGET_BATCHES):
        name, others = "targets", len(batch.targets[0] if _has_views(batch) else batch.targets)
    else:
        name, others = "labels", len(batch.label)
    if (images, others) != (delivered, delivered):
        raise ValueError(
            f"the batch has {images} images and {others} {name}, but {delivered} were delivered, so their "
            "samples are unknown: hooks that run before Augment must keep all of them"
        )


def _has_views(batch: AnyBatch) -> bool:
    return isinstance(batch.image, list) or batch.image.ndim > 4


def _mixed(
    augment: Augment, image: Any, label: Tensor, seed: int, request: Request, repeats: int
) -> tuple[Tensor, Tensor]:
    """Mix a batch; with ``repeats``, each image with one of another sample where the batch has others."""
    first, options = int(request.ids[0]), {"seed": seed, "epoch": request.epoch}
    if repeats == 1 or request.occurrence is None or not isinstance(image, Tensor) or image.ndim != 4:
        return augment.mix_batch(image, label, first, **options)
    # Mixing takes neighbours, which are images of one sample here: all first occurrences come first instead.
    order = torch.from_numpy(np.argsort(request.occurrence, kind="stable")).to(image.device)
    options["occurrence"] = int(request.occurrence[0])
    image, label = augment.mix_batch(image[order], label[order], first, **options)
    return image[back := order.argsort()], label[back]


def params_of(
    augment: Augment, size: Sequence[int], seed: int, request: Request, views: Sequence[int] = (0,)
) -> dict[str, Tensor]:
    """Draw the params of the images, (height, width) each, of these views of ``request``: len(views) * B."""
    height, width = size
    return augment.params(
        request.ids,
        (height, width),
        seed=seed,
        epoch=request.epoch,
        occurrence=request.occurrence,
        views=views,
    )


def augment_in_worker(
    augment: nn.Module,
    images: list[Tensor],
    seed: int,
    request: Request | None,
    out: Images | None,
    views: Sequence[Sequence[int]],
) -> list[Tensor]:
    """Augment images in a worker as ``augment_on_arrival`` would do it later.

    ``request`` None: without distortions.
    """

    def transform(module: Any, part: Tensor, numbers: Sequence[int], into: Tensor | None) -> Tensor:
        params = {} if request is None else params_of(module, part.shape[-2:], seed, request, numbers)
        result: Tensor = module.transform(part, params, into)
        return result

    outs = [None] * len(images) if out is None else by_size(out)
    groups = _numbers(augment, images, views)
    return [
        _on_views(transform, augment, part, numbers, into)
        for part, numbers, into in zip(images, groups, outs, strict=True)
    ]


def moved_views(
    augment: nn.Module, views: Sequence[View], sizes: Sequence[Sequence[int]], seed: int, request: Request
) -> list[View]:
    """Return the views with the geometry of the distortions that are drawn for ``request``.

    Args:
        augment: As for ``augment_on_arrival``.
        views: What was drawn for the crops.
        sizes: (height, width) of the images of each view.
        seed: Seed of the distortions.
        request: The request for the batch.
    """
    moved = []
    for number, (view, size) in enumerate(zip(views, sizes, strict=True)):
        module = uncompiled(augment[number] if isinstance(augment, nn.ModuleList) else augment)
        if isinstance(module, Augment) and module.is_random:
            params = params_of(module, size, seed, request, [number])
            if type(module).geometry is Augment.geometry:
                affine, steps = affine_and_steps(module.moves(params, size))
                view = view.then(affine, steps)
            else:  # of a user's class
                matrices = module.geometry(params, size)
                view = view.then(None if matrices is None else matrices.numpy())
        moved.append(view)
    return moved


def moving(
    pixels: PixelFormat, augment: nn.Module | None, split: Split | None, *, training: bool
) -> PixelFormat:
    """Return the format with which the worker moves targets as ``augment`` will move the delivered images.

    ``pixels`` itself without targets, outside of training, and if the worker runs ``augment``.
    """
    has_targets = split is not None and split.targets is not None
    if not (has_targets and training) or pixels.worker_augment is not None:
        return pixels
    return replace(pixels, moves=augment)


def pixels_of(augment: nn.Module | None, is_training: bool, workers: int, views: int = 1) -> PixelFormat:
    """Format of a loader's images if the CPU trains: as much of ``augment`` as the loader does better.

    Normalisation alone is done by the decoder while it writes. Anything more is done by the worker processes,
    in parallel to the training: 5% to 30% more steps per second with ``augment=heavy`` and a small network on
    two cores. Without workers Augment runs on the delivered batches.
    """
    modules = modules_of(augment)[: None if views > 1 else 1]
    own = [module for module in modules if type(module) is Augment]
    dtypes = {module.dtype for module in own}
    is_planar = any(module.memory_format is torch.contiguous_format for module in own)
    if len(own) < len(modules) or len(dtypes) != 1 or is_planar:
        return PixelFormat()
    distorts, first = is_training and any(module.is_random for module in own), own[0]
    has_one_scale = len({(module.mean, module.std, module.space) for module in own}) == 1
    if not distorts and has_one_scale and first.space == "rgb":
        return PixelFormat(first.mean, first.std, first.dtype)
    if not workers:
        return PixelFormat()
    return PixelFormat(dtype=first.dtype, worker_augment=augment, distorts=distorts)


def _numbers(
    augment: nn.Module, parts: Sequence[Tensor], views: Sequence[Sequence[int]] | None
) -> list[Sequence[int]]:
    """Return the numbers of the views of each tensor, checked against ``views`` and ``augment``.

    Hooks may remove views from a split with one size.
    """
    lengths = [part.shape[-4] for part in parts if len(parts) > 1]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the views of a batch have {' and '.join(map(str, lengths))} images: a hook that removes "
            "samples must remove them from all tensors of batch.image, and from batch.label"
        )
    counts = [1 if part.ndim == 4 else len(part) for part in parts]
    starts = [sum(counts[:size]) for size in range(len(counts))]
    numbers: list[Sequence[int]] = [
        range(start, start + count) for start, count in zip(starts, counts, strict=True)
    ]
    if views is not None and len(views) > 1:
        numbers, delivered = list(views), [len(group) for group in views]
        if counts != delivered:
            raise ValueError(
                f"the batch has {counts} views of each size, but {delivered} were delivered: hooks that run "
                "before augment= must keep all of them"
            )
    if isinstance(augment, nn.ModuleList) and sum(counts) not in (1, len(augment)):
        raise ValueError(
            f"augment= has {len(augment)} modules, but the batch has {sum(counts)} views: give one module "
            "per view, or a single one for all"
        )
    return numbers


def _on_views(
    call: Callable[[Any, Tensor, Sequence[int], Tensor | None], Tensor],
    augment: nn.Module,
    images: Tensor,
    numbers: Sequence[int],
    out: Tensor | None = None,
) -> Tensor:
    """Return ``call(module, images, numbers, out)`` of the views of one size.

    Consecutive views with the same module are one batch ``[n * B, 3, H, W]`` in one call.
    """
    runs: list[tuple[nn.Module, list[int]]] = [(augment, list(numbers))]
    if isinstance(augment, nn.ModuleList):
        runs = [(module, list(run)) for module, run in groupby(numbers, augment.__getitem__)]
    if len(runs) == 1 and images.ndim == 4:
        return call(runs[0][0], images, numbers, out)
    # flatten(0, -4) returns a batch of one view itself.
    flat, into = images.flatten(0, -4), None if out is None else out.flatten(0, -4)
    lead, results, start = images.shape[:-3], [], 0
    for module, run in runs:
        rows = slice(start, start + len(run) * lead[-1])
        results.append(call(module, flat[rows], run, None if into is None else into[rows]))
        start = rows.stop
    if into is not None:
        return into.view(images.shape)
    if len({(result.shape[1:], result.dtype) for result in results}) > 1:
        shown = [f"{result.dtype} {list(result.shape[1:])}" for result in results]
        raise ValueError(
            f"augment= returns {' and '.join(shown)} for the views {[run for _, run in runs]}, whose crops "
            "have one size: their results must have one shape and type"
        )
    whole = results[0] if len(results) == 1 else torch.cat(results)
    return whole.view(*lead, *whole.shape[1:])

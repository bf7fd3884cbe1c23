"""Batches, the result of fetching one, and their augmentation: in the worker or where they arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..augment.module import Augment
from ..sampling.sampler import Request
from .config import PixelFormat


class Batch(NamedTuple):
    """``image``: uint8 ``[B, 3, H, W]``, RGB, channels_last. ``label``: int64 ``[B]``.

    With ``Split(views=n)`` the image is ``[n, B, 3, H, W]``, where ``image[v]`` is an ordinary batch; with
    several targets the label is ``[B, targets]``.
    """

    image: Tensor
    label: Tensor


class KeyedBatch(NamedTuple):
    """A ``Batch`` with ``key``, the keys of the B samples: in prediction, and with ``keys=True``."""

    image: Tensor
    label: Tensor
    key: list[str]


class ExtraBatch(NamedTuple):
    """A ``KeyedBatch`` with ``extra``: what the split's ``decode`` returned for each sample's members."""

    image: Tensor
    label: Tensor
    key: list[str]
    extra: list[Any]


AnyBatch = Batch | KeyedBatch | ExtraBatch


class FetchResult(NamedTuple):
    """A batch, or the error in its place, and the messages about it.

    The training process warns and raises: each worker would warn separately. ``substituted``: a message for
    each image that was replaced. ``non_jpeg``: a message about the first image that is not a JPEG. ``notes``:
    other warnings. ``request``: the request for the batch; a worker sends it only if it made it itself.
    """

    batch: AnyBatch | None
    substituted: list[str]
    non_jpeg: str | None
    error: Exception | None = None
    notes: Sequence[str] = ()
    request: Request | None = None


def uncompiled(module: Any) -> Any:
    """Return the module that torch.compile was given; any other object as it is."""
    return getattr(module, "_orig_mod", module)


def augmented(
    augment: nn.Module, batch: AnyBatch, seed: int, request: Request | None, *, is_augmented: bool
) -> AnyBatch:
    """Augment a batch, images ``[B, 3, H, W]`` or views ``[n, B, 3, H, W]``, as drawn for ``request``.

    ``request`` None: without distortions. ``is_augmented``: the loader delivered floating-point images, to
    whatever type they were cast since, that need nothing more. Raises ``ValueError`` if the batch is not of
    as many samples as the request.
    """
    image, label = batch.image, batch.label
    plain = uncompiled(augment)  # also then the draws are functions of the samples
    if not isinstance(plain, Augment):
        return batch._replace(image=_on_each_view(augment, image))
    if not augment.training:
        request = None
    if request is not None and (image.shape[-4], len(label)) != 2 * (len(request.ids),):
        raise ValueError(
            f"the batch has {image.shape[-4]} images and {len(label)} labels, but {len(request.ids)} were "
            "delivered, so their samples are unknown: hooks that run before Augment must keep all of them"
        )
    if not (is_augmented and image.is_floating_point()):
        if request is not None and plain.is_random:
            params = params_of(plain, image, seed, request)
            image = _on_each_view(lambda images: augment(images, params), image)
        else:
            image = _on_each_view(augment, image)
    if request is not None and plain.mix is not None:
        image, label = plain.mix_batch(image, label, int(request.ids[0]), seed=seed, epoch=request.epoch)
    return batch._replace(image=image, label=label)


def params_of(augment: Augment, images: Tensor, seed: int, request: Request) -> dict[str, Tensor]:
    """Draw the params of the images ``[B, 3, H, W]`` or ``[n, B, 3, H, W]`` of ``request``."""
    views = 1 if images.ndim == 4 else len(images)
    size, epoch, occurrence = images.shape[-2:], request.epoch, request.occurrence
    return augment.params(request.ids, size, seed=seed, epoch=epoch, occurrence=occurrence, views=views)


def augment_images(
    augment: Augment, images: Tensor, seed: int, request: Request | None, out: Tensor | None
) -> Tensor:
    """Augment images in a worker as ``augmented`` would later; ``request`` None: without distortions."""
    params = {} if request is None else params_of(augment, images, seed, request)
    # The views of all samples are one batch; flatten(0, -4) returns a batch of one view itself.
    flat = augment.transform(images.flatten(0, -4), params, None if out is None else out.flatten(0, -4))
    return flat.view(images.shape) if out is None else out


def pixels_of(augment: nn.Module | None, is_training: bool, workers: int) -> PixelFormat:
    """Format of a loader's images if the CPU trains: as much of ``augment`` as the loader does better.

    Normalisation alone is done by the decoder while it writes. Anything more is done by the worker processes,
    in parallel to the training: 5% to 30% more steps per second with ``augment=heavy`` and a small network on
    two cores. Without workers Augment runs on the delivered batches.
    """
    if type(augment) is not Augment or augment.memory_format is torch.contiguous_format:
        return PixelFormat()
    distorts = is_training and augment.is_random
    if not distorts and augment.space == "rgb":
        return PixelFormat(augment.mean, augment.std, augment.dtype)
    return PixelFormat(dtype=augment.dtype, augment=augment, distorts=distorts) if workers else PixelFormat()


def _on_each_view(augment: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    if images.ndim == 4:
        return augment(images)
    flat = augment(images.flatten(0, 1))
    return flat.view(*images.shape[:2], *flat.shape[1:])

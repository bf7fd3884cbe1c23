"""What passes between the rooms: samples, a request for a batch, and the batch."""
# MERGED: Augment and the loaders' batches: which numbers belong to a batch, and where the work is done.

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
    """A ``Batch`` with ``key``: the B samples' keys. In prediction, and with ``keys=True``."""

    image: Tensor
    label: Tensor
    key: list[str]


class ExtraBatch(NamedTuple):
    """A ``KeyedBatch`` with ``extra``: for each sample what the split's ``decode`` made of its members."""

    image: Tensor
    label: Tensor
    key: list[str]
    extra: list[Any]


AnyBatch = Batch | KeyedBatch | ExtraBatch


class FetchResult(NamedTuple):
    """What a worker hands back: a batch and what there is to tell about it, or the error in its place.

    The parent process tells and raises: a worker would tell things once per worker, and torch would wrap the
    error's message into a traceback. ``request``: what the batch answers, whoever stood in for whom.
    """

    batch: AnyBatch | None
    substituted: list[str]
    non_jpeg: str | None
    error: Exception | None = None
    notes: Sequence[str] = ()
    request: Request | None = None


def augmented(
    augment: nn.Module, batch: AnyBatch, seed: int, request: Request | None, *, is_augmented: bool
) -> AnyBatch:
    """Augment a batch, images ``[B, 3, H, W]`` or views ``[n, B, 3, H, W]``, that answers ``request``.

    ``is_augmented``: the loader has made floating-point images already, whatever type they were cast to since.
    """
    image, label = batch.image, batch.label
    if not isinstance(augment, Augment):
        return batch._replace(image=_each_view(augment, image))
    if not augment.training:
        request = None
    if request is not None and (image.shape[-4], len(label)) != 2 * (len(request.ids),):
        raise ValueError(
            f"the batch has {image.shape[-4]} images and {len(label)} labels where {len(request.ids)} were "
            "delivered, so which samples they are is not known: hooks that run before Augment must keep them"
        )
    if not (is_augmented and image.is_floating_point()):  # see pixels_of
        if request is not None and augment.is_random:
            drawn = params_of(augment, image, seed, request)
            image = _each_view(lambda images: augment(images, drawn), image)
        else:
            image = _each_view(augment, image)
    if request is not None and augment.mix is not None:
        image, label = augment.mix_batch(image, label, int(request.ids[0]), seed=seed, epoch=request.epoch)
    return batch._replace(image=image, label=label)


def params_of(augment: Augment, images: Tensor, seed: int, request: Request) -> dict[str, Tensor]:
    """Draw the numbers of images ``[B, 3, H, W]`` or ``[n, B, 3, H, W]`` that answer ``request``."""
    views = 1 if images.ndim == 4 else len(images)
    size, epoch = images.shape[-2:], request.epoch
    return augment.params(
        request.ids, size, seed=seed, epoch=epoch, occurrence=request.occurrence, views=views
    )


def augment_images(
    augment: Augment, images: Tensor, seed: int, request: Request | None, out: Tensor | None
) -> Tensor:
    """Do in a worker what ``augmented`` does to images; ``request``: None where they are not distorted."""
    numbers = {} if request is None else params_of(augment, images, seed, request)
    if images.ndim == 4:
        return augment.transform(images, numbers, out)
    flat = augment.transform(images.flatten(0, 1), numbers, None if out is None else out.flatten(0, 1))
    return flat.view(images.shape) if out is None else out


def pixels_of(augment: nn.Module | None, in_training: bool, workers: int) -> PixelFormat:
    """Say what the loaders make of the images where the CPU trains, so that little is left to do for Augment.

    Normalising alone is done by the decoder as it writes. Anything more is done by the worker processes,
    beside the training rather than in turn with it: 5% to 30% more steps a second with ``augment=heavy`` and
    a small network on two cores. Without workers Augment runs where the batches arrive.
    """
    if type(augment) is not Augment or augment.memory_format is torch.contiguous_format:
        return PixelFormat()
    distorts = in_training and augment.is_random
    if not distorts and augment.space == "rgb":
        return PixelFormat(augment.mean, augment.std, augment.dtype)
    return PixelFormat(dtype=augment.dtype, augment=augment, distorts=distorts) if workers else PixelFormat()


def _each_view(augment: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    if images.ndim == 4:
        return augment(images)
    flat = augment(images.flatten(0, 1))
    return flat.view(*images.shape[:2], *flat.shape[1:])

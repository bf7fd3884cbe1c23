"""Which sources of a mixture are fetched together: those that differ in crop, flip and labels alone."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..sampling.rng import Int64
from ..shards.joined import Joined
from ..shards.label import Form, Labels
from ..shards.labels import read_labels
from ..shards.source import Source
from ..transforms.adapters import original
from ..transforms.pipeline import Pipeline, Uncropped
from .fetch import Fetcher
from .resize_first import resizes_first

# Of a pipeline, what each row has for itself, and what describes it.
_OF_ROWS = ("crop", "flip", "head")
# Of a split, what follows the steps of its pipelines.
_ENDINGS = ("members", "decode", "targets")


def groups_of(fetchers: Sequence[Fetcher]) -> list[list[Fetcher]]:
    """Return neighbours that ``together`` may join."""
    groups: list[list[Fetcher]] = []
    for each in fetchers:
        if groups and _are_alike(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def together(fetchers: Sequence[Fetcher]) -> Fetcher:
    """Return a fetcher of the samples of several sources, numbered one source after another."""
    flipping = [each for each in fetchers if each.split.pipelines[0].flip]  # only such a split mirrors rows
    first, shards = (flipping or fetchers)[0], Joined([each.shards for each in fetchers])
    candidates = None
    if any(each.candidates is not None for each in fetchers):
        own = [
            np.arange(len(each.shards)) if each.candidates is None else each.candidates for each in fetchers
        ]
        candidates = np.concatenate(
            [ids + offset for ids, offset in zip(own, shards.offsets.tolist(), strict=False)]
        )
    is_plain = all(each.labels is None and each.split.target == first.split.target for each in fetchers)
    return replace(
        first,
        shards=shards,
        candidates=candidates,
        labels=None if is_plain else _Labels(shards, fetchers),
        drawings=[each.drawing for each in fetchers],
        _found={},
    )


@dataclass(frozen=True)
class _Labels(Labels):
    """Labels of several sources, each as its own split reads them."""

    joined: Joined
    fetchers: Sequence[Fetcher]

    @property
    def form(self) -> Form:
        """That of the first source; those of the others are of its type."""
        labels = self.fetchers[0].labels
        assert labels is not None
        return labels.form

    def read(self, source: Source, ids: Int64) -> Tensor:
        """Read the labels of samples ids [B]."""
        found = []
        for part, own in self.joined.runs(ids):
            fetcher = self.fetchers[part]
            target: Any = fetcher.split.target
            reader, shards = fetcher.labels, fetcher.shards
            found.append(read_labels(shards, own, target) if reader is None else reader.read(shards, own))
        return torch.cat(found)

    def identity(self) -> str:
        """Return nothing: the sources have their own."""
        return ""


def end_alike(fetchers: Sequence[Fetcher]) -> bool:
    """Whether what follows the steps in Python is the same for all: their members, and targets.

    Targets that the steps of one move are its own.
    """
    splits = [each.split for each in fetchers]
    if splits[0].targets is not None and any(each.pipelines[0].moves_targets_in_python for each in splits):
        return False
    return all(_have_the_same(splits[0], each, _ENDINGS) for each in splits[1:])


def _are_alike(one: Fetcher, other: Fetcher) -> bool:
    """Whether the rows of two sources are made by the same steps, apart from boxes and flips.

    Of samples with several images, boxes and flips are the same steps, too.
    """
    splits, pipelines = (one.split, other.split), (one.split.pipelines[0], other.split.pipelines[0])
    crops: list[Any] = [pipeline.crop for pipeline in pipelines]
    sizes = [tuple(crop.size) for crop in crops]
    if sizes[0] != sizes[1] or one.decoding != other.decoding or splits[0].channels != splits[1].channels:
        return False
    has_own_steps = [
        isinstance(pipeline.crop, Uncropped) or resizes_first(pipeline, split.fidelity, 0) is not None
        for pipeline, split in zip(pipelines, splits, strict=True)
    ]
    if any(has_own_steps) and not _is_same(*crops):
        return False
    names = [*_ENDINGS]
    if any(split.image is not None for split in splits):
        names += ["image_names", "shares_box", "flip"]
        views = [split.pipelines for split in splits]
        if len(views[0]) != len(views[1]) or not all(
            _is_same(one.crop, other.crop) and one.flip == other.flip and _have_the_same_steps(one, other)
            for one, other in zip(*views, strict=True)
        ):
            return False
    return _have_the_same_steps(*pipelines) and _have_the_same(*splits, names)


def _have_the_same_steps(one: Pipeline, other: Pipeline) -> bool:
    return _have_the_same(one, other, [each.name for each in fields(Pipeline) if each.name not in _OF_ROWS])


def _have_the_same(one: Any, other: Any, names: Sequence[str]) -> bool:
    return all(_is_same(getattr(one, name), getattr(other, name)) for name in names)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two settings are the same: of a user's own objects, whether they are one.

    Steps of torchvision are if they were made alike: they have settings, and no state.
    """
    one, other = original(one), original(other)
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one).__module__.startswith("torchvision.transforms."):
        with contextlib.suppress(pickle.PicklingError, AttributeError, TypeError):  # of a function in it
            return pickle.dumps(one) == pickle.dumps(other)
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    is_plain = isinstance(one, (bool, int, float, str, bytes, torch.dtype, type(None)))
    is_own = type(one).__module__.partition(".")[0] == __package__.partition(".")[0]
    return bool((is_plain or is_own) and one == other)

"""The files of samples with several images, of ``Split(image=...)``: a list of members, or a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..sampling.geometry import Int32
from ..sampling.rng import Int64
from ..shards.image_names import Pattern, stored_names
from ..shards.joined import Joined
from ..shards.source import Source


@dataclass
class ManyFiles:
    """The encoded images of some samples, R in all.

    Of a list they come image by image, [n, B]; of a pattern sample by sample.

    Args:
        rows: Row of the batch of each image, int64 [R].
        numbers: Number of each within its sample, int64 [R].
        files: The files, uint8 [n] each; empty for a missing one.
        names: Extension of each.
        lost: By row of the batch, why it has no image.
    """

    rows: Int64
    numbers: Int64
    files: list[Tensor]
    names: list[str]
    lost: dict[int, str]

    @cached_property
    def known(self) -> Int32:
        """Sizes of the images by their headers, int32 [R, 2]; (0, 0) if Pillow has to open them."""
        from ..ops.decode import image_sizes  # here, because it loads the operators

        return image_sizes(self.files).numpy() if self.files else np.zeros((0, 2), np.int32)


def read_list(source: Source, ids: Int64, names: Sequence[str]) -> ManyFiles:
    """Read the images of these extensions of the samples ids [B]."""
    if isinstance(source, Joined) and len({part.cached_images is None for part in source.parts}) > 1:
        # Images of caches may have other extensions.
        return _joined([read_list(source.parts[part], own, names) for part, own in source.runs(ids)], names)
    count, files, lost = len(ids), list[Tensor](), dict[int, str]()
    taken: set[tuple[int, str]] = set()  # left.tpj is one image, not both of left.jpg and left.png
    for name in names:
        found = source.member_images(ids, name)
        stored = stored_names(name, is_cached=source.cached_images is not None)
        for other in [each for each in stored[1:] if each not in names]:
            missing = [row for row, file in enumerate(found) if file is None and (row, other) not in taken]
            if not missing:
                continue
            for row, file in zip(missing, source.member_images(ids[missing], other), strict=True):
                found[row] = file
                taken |= {(row, other)} if file is not None else set()
        for row, file in enumerate(found):
            if file is None:
                members = source.extensions(int(ids[row]))
                lost.setdefault(row, f"it has no member {name!r}, only {members}")
        files += [_nothing() if file is None else file for file in found]
    return ManyFiles(
        rows=np.tile(np.arange(count), len(names)),
        numbers=np.repeat(np.arange(len(names)), count),
        files=files,
        names=np.repeat(np.array(names, object), count).tolist(),
        lost=lost,
    )


def read_pattern(source: Source, ids: Int64, pattern: Pattern) -> ManyFiles:
    """Read the images whose extensions match, of the samples ids [B], in natural order."""
    rows, numbers, names = list[int](), list[int](), list[str]()
    places: dict[str, list[int]] = {}
    lost = dict[int, str]()
    pattern = replace(pattern, is_cached=source.cached_images is not None)
    for row, id in enumerate(ids.tolist()):
        members = source.extensions(id)
        chosen = pattern.chosen(members)
        if not chosen:
            lost[row] = f"none of its members {members} matches image={pattern.text!r}"
        for number, name in enumerate(chosen):
            places.setdefault(name, []).append(len(rows))
            rows.append(row)
            numbers.append(number)
            names.append(name)
    of_rows, files = np.array(rows, np.int64), [_nothing()] * len(rows)
    for name, own in places.items():
        for place, file in zip(own, source.member_images(ids[of_rows[own]], name), strict=True):
            if file is None:  # extensions() of a user's source has it, and members() does not
                lost.setdefault(rows[place], f"its member {name!r} cannot be read")
            else:
                files[place] = file
    return ManyFiles(of_rows, np.array(numbers, np.int64), files, names, lost)


def _joined(parts: Sequence[ManyFiles], names: Sequence[str]) -> ManyFiles:
    """Return the images of these extensions of the samples of several parts, one after another."""
    counts = [len(part.files) // len(names) for part in parts]
    count, begins = sum(counts), np.cumsum([0, *counts]).tolist()
    files = list[Tensor]()
    for number in range(len(names)):
        for part, own in zip(parts, counts, strict=True):
            files += part.files[number * own : (number + 1) * own]
    return ManyFiles(
        rows=np.tile(np.arange(count), len(names)),
        numbers=np.repeat(np.arange(len(names)), count),
        files=files,
        names=np.repeat(np.array(names, object), count).tolist(),
        lost={
            begin + row: text
            for part, begin in zip(parts, begins, strict=False)
            for row, text in part.lost.items()
        },
    )


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device="cpu")

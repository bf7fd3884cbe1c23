"""Several sources as one: the samples of the first, then those of the second, and so on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..sampling.sampler import runs_of
from .index import Int64
from .mapped import Shards
from .source import Source, image_is

if TYPE_CHECKING:
    from torch import Tensor


def own_numbers(source: Source, ids: Int64) -> list[int]:
    """Return the numbers of samples ids [B] in the source that they come from."""
    own: list[int] = (source.places(ids)[1] if isinstance(source, Joined) else ids).tolist()
    return own


class Joined(Source):
    """The samples of several sources, numbered one source after another.

    Args:
        parts: The sources.
    """

    def __init__(self, parts: Sequence[Source]) -> None:
        self.parts = list(parts)
        self.offsets = np.cumsum([0, *map(len, self.parts)])
        shards = [each for each in self.parts if type(each) is Shards]
        # A call for each source would take a hundredth of the time of a batch.
        self._whole = Shards.joined(shards) if len(shards) == len(self.parts) else None

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def places(self, ids: npt.ArrayLike) -> tuple[Int64, Int64]:
        """Return the source of samples ids [B], and their numbers in it: int64 [B] each."""
        numbers = np.asarray(ids, np.int64)
        sources = np.searchsorted(self.offsets, numbers, side="right") - 1
        return sources, numbers - self.offsets[sources]

    def runs(self, ids: npt.ArrayLike) -> list[tuple[int, Int64]]:
        """Return the samples ids [B] in their order: number of a source, and those that follow each other."""
        sources, numbers = self.places(ids)
        return [(int(sources[rows.start]), numbers[rows]) for rows in runs_of(sources)]

    def _readers(self, ids: npt.ArrayLike) -> list[tuple[Source, npt.ArrayLike]]:
        """Return what reads the samples ids [B], in their order, and their numbers there."""
        if self._whole is not None:
            return [(self._whole, ids)]
        return [(self.parts[part], own) for part, own in self.runs(ids)]

    def keys(self, ids: npt.ArrayLike) -> list[str]:  # noqa: D102 (here and below: as in Source)
        return [key for source, own in self._readers(ids) for key in source.keys(own)]

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:  # noqa: D102
        return [each for source, own in self._readers(ids) for each in source.members(own, extension)]

    def image_is(self, ids: npt.ArrayLike, extension: str) -> list[bool]:
        """Whether the image of each sample is its member of that extension, as far as its source knows."""
        return [each for source, own in self._readers(ids) for each in image_is(source, own, extension)]

    def extensions(self, id: int) -> list[str]:  # noqa: D102
        ((part, own),) = self.runs([id])
        return self.parts[part].extensions(int(own[0]))

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:  # noqa: D102
        if self._whole is not None:
            return self._whole.images(ids)
        return [image for source, own in self._readers(ids) for image in source.images(own)]

    def member_images(self, ids: npt.ArrayLike, extension: str) -> list[Tensor | None]:  # noqa: D102
        return [each for source, own in self._readers(ids) for each in source.member_images(own, extension)]

    @property
    def cached_images(self) -> tuple[str, ...] | None:
        """Those of all parts; None if one of them is no cache."""
        found = [each.cached_images for each in self.parts]
        known = [each for each in found if each is not None]
        return tuple(name for each in known for name in each) if len(known) == len(found) else None

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:  # noqa: D102
        if self._whole is not None:
            return self._whole.labels(ids, extension)
        import torch

        return torch.cat([self.parts[part].labels(own, extension) for part, own in self.runs(ids)])

    def sizes(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:  # noqa: D102
        return np.concatenate([source.sizes(own) for source, own in self._readers(ids)])

    def shard(self, id: int) -> str | Path:  # noqa: D102
        ((part, own),) = self.runs([id])
        return self.parts[part].shard(int(own[0]))

    def check_unchanged(self, ids: npt.ArrayLike) -> None:  # noqa: D102
        for source, own in self._readers(ids):
            source.check_unchanged(own)

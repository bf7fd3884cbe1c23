"""Files as parts of larger memory, such as mapped tars: the operators take them without a tensor of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .index import Int64


@dataclass(frozen=True)
class Spans:
    """The bytes of files: a tensor of each takes 2 us to make, to pass and to release.

    Args:
        memory: uint8 [n] each, never written to.
        places: int64 [3, B], for each file the number of its memory, its first byte, and its bytes.
    """

    memory: Sequence[Tensor]
    places: Int64

    @classmethod
    def of(cls, files: Sequence[Tensor]) -> Spans:
        """Return files that have memory of their own each."""
        places = np.zeros((3, len(files)), np.int64)
        places[0] = np.arange(len(files))
        places[2] = [file.numel() for file in files]
        return cls(files, places)

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.places[2])

    @property
    def nbytes(self) -> Int64:
        """Bytes of each file, int64 [B]."""
        nbytes: Int64 = self.places[2]
        return nbytes

    def tensors(self, rows: Iterable[int]) -> list[Tensor]:
        """Return some of the files, uint8 [n] each."""
        numbers, begins, sizes = self.places.tolist()
        return [self.memory[numbers[row]][begins[row] : begins[row] + sizes[row]] for row in rows]

"""A few seconds' look at how fast crops are decoded here. For figures to quote there is ``bench``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..benchmarks.decode_peers import decode_jpeg
from ..datasets.synthetic import Photos, photograph
from ..ops import decode
from ..sampling.crops import RandomCrop

_PHOTOS, _CROP = 12, 256
_REPEATED = (8, 128)  # times that each photograph is in a batch: once a core, within these bounds
_ROUNDS = (3, 40)  # at least, at most
_SCALING = 0.6  # of the cores: less is odd
_AHEAD = 1.3  # times as fast as the next slower way: less is odd


@dataclass(frozen=True)
class SpeedCheck:
    """Microseconds that a 256x256 crop of an 800x533 photograph takes, in the best of the rounds.

    torchvision, ordinary, tiled: processor time on one thread; torchvision decodes everything and crops, the
    others are ours, on the same file and on its tiled copy. alone, together: tiled again, by the clock, on
    one thread and with a thread on each of ``cores``.
    """

    torchvision: float
    ordinary: float
    tiled: float
    alone: float
    together: float
    cores: int

    @property
    def scaling(self) -> float:
        """How many times as fast all cores are as one."""
        return self.alone / self.together

    def lines(self) -> list[str]:
        """Say it in words."""
        kinds = (("an ordinary", self.ordinary), ("a tiled", self.tiled))
        lines = [
            f"a crop of {kind} 800x533 photograph: {taken:.0f} us, "
            f"{self.torchvision / taken:.1f} times torchvision"
            for kind, taken in kinds
        ]
        if self.cores > 1:
            lines.append(
                f"on {self.cores} cores: {1e6 / self.together:.0f} tiled crops a second, "
                f"{self.scaling:.1f} times one core"
            )
        return lines

    def oddities(self) -> list[str]:
        """Name what should not be so, and what to look at."""
        odd = []
        if self.cores > 1 and self.scaling < _SCALING * self.cores:
            odd.append(
                f"threads do not scale: {self.cores} cores are {self.scaling:.1f} times as fast as one. Look "
                "for other work on this machine, and for a limit that its container sets"
            )
        pairs = (
            ("of ordinary photographs", self.ordinary, "torchvision", self.torchvision),
            ("of tiled photographs", self.tiled, "of ordinary ones", self.ordinary),
        )
        for what, taken, other, others in pairs:
            if others < _AHEAD * taken:
                odd.append(
                    f"slow path: a crop {what} takes {taken:.0f} us, {other} {others:.0f} us. "
                    "Look at SIMD above; where others use this machine, try again"
                )
        return odd


def check_speed(cores: int, seconds: float = 6.0) -> SpeedCheck:
    """Draw a few photographs and decode crops of them for about `seconds`, on one thread and on `cores`."""
    jpegs = [_tensor(photograph(Photos(size="article"), index).jpeg) for index in range(_PHOTOS)]
    tiled = [decode.tile_jpeg(jpeg) for jpeg in jpegs]
    generator, crop = np.random.default_rng(0), RandomCrop(_CROP)
    times = min(max(_REPEATED[0], cores), _REPEATED[1])
    count = times * _PHOTOS
    sizes = decode.image_sizes(jpegs).repeat(times, 1).numpy()
    boxes = torch.from_numpy(crop.boxes(sizes, generator.random((count, crop.draws))))
    out = torch.empty((count, 3, _CROP, _CROP), dtype=torch.uint8, memory_format=torch.channels_last)

    def ours(files: list[Tensor], threads: int) -> Callable[[], object]:
        return lambda: decode.decode_batch(files * times, boxes, _CROP, out=out, threads=threads)

    def theirs() -> None:
        for jpeg, (top, left, height, width) in zip(jpegs, boxes[:_PHOTOS].tolist(), strict=True):
            decode_jpeg(jpeg)[:, top : top + height, left : left + width]

    cpu, wall = time.process_time, time.perf_counter  # the former leaves out others' turns on a busy machine
    ways = (
        (theirs, cpu, _PHOTOS),
        (ours(jpegs, 1), cpu, count),
        (ours(tiled, 1), cpu, count),
        (ours(tiled, 1), wall, count),
        (ours(tiled, cores), wall, count),
    )
    rounds: list[list[float]] = []
    end = wall() + seconds
    while len(rounds) < _ROUNDS[0] or (len(rounds) < _ROUNDS[1] and wall() < end):
        taken = []
        for way, clock, images in ways:
            started = clock()
            way()
            taken.append(1e6 * (clock() - started) / images)
        rounds.append(taken)
    torchvision, ordinary, tiled_cpu, alone, together = map(min, zip(*rounds, strict=True))
    return SpeedCheck(torchvision, ordinary, tiled_cpu, alone, together, cores)


def _tensor(jpeg: bytes) -> Tensor:
    return torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)

"""The loader benchmark's contestants, each in a process of its own that is told when its turn is.

Runs in a child of ``workers.Processes(1)``: what is open stays here from call to call.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..loader.config import LoaderConfig, PixelFormat
from ..loader.loader import Loader
from ..loader.split import Split
from ..ops import decode
from ..processes import Processes
from ..sampling.crops import RandomResizedCrop
from ..shards.mapped import Shards
from . import loader_peers
from .contestants import BATCH, MEAN, SIZE, STD
from .loader import LoaderData

_TICKS = os.sysconf("SC_CLK_TCK")
_WARM = 8  # batches that may lie ready when a turn begins
_KINDS = ("ordinary", "tiled", "raw")
BOUND = "bound: the operator alone, "
"""How the name of what we are compared with begins."""
ENGINES = ("threads", "workers")


class Turn(NamedTuple):
    """What was made in a turn: images, seconds that it took, and processor seconds of all processes."""

    images: int
    seconds: float
    processor: float


@dataclass(frozen=True)
class Contestant:
    """Who takes part: ``name`` says how, ``group`` what is made: "uint8" or "float32"."""

    name: str
    group: str
    data: LoaderData
    workers: int

    def batches(self) -> Iterator[Any]:
        """Begin to make batches, for ever; raise ValueError where that cannot be done."""
        return _batches(self)

    def expects(self, images: Tensor) -> bool:
        """Say whether images are of the shape and type that was asked for."""
        shapes = {(BATCH, 3, SIZE, SIZE), (BATCH, SIZE, SIZE, 3)}
        return tuple(images.shape) in shapes and images.dtype == getattr(torch, self.group)


def ours() -> list[str]:
    """Name our own ways, and what bounds them."""
    kinds = [f"tarpeg, {kind}, {engine}" for kind in _KINDS for engine in ENGINES]
    return [*kinds, *(f"{BOUND}{kind}" for kind in _KINDS[1:])]


_open: dict[str, Any] = {}


def prepare(who: Contestant) -> None:
    """Make ``who``'s batches, and the data that it needs, up to the first one."""
    torch.set_num_threads(1)
    if who.name.startswith(BOUND):
        _open["alone"] = _Alone(who)
    else:
        _open["batches"] = who.batches()


def begin(who: Contestant) -> float:
    """Return how many seconds the first batch takes."""
    if "alone" in _open:
        return 0.0
    started = time.perf_counter()
    images = next(_open["batches"])[0]
    seconds = time.perf_counter() - started
    if not who.expects(images):
        raise ValueError(f"{who.name} makes {images.dtype} {list(images.shape)}, not what was asked for")
    return seconds


def turn(seconds: float) -> Turn:
    """Take batches for ``seconds`` after a few that are not counted; then wait until all is quiet."""
    if "alone" in _open:
        made: Turn = _open["alone"].turn(seconds)
        return made
    batches = _open["batches"]
    for _ in range(_WARM):
        next(batches)
    images, processor, started = 0, processor_seconds(), time.perf_counter()
    while (passed := time.perf_counter() - started) < seconds or not images:
        images += len(next(batches)[0])
    passed = time.perf_counter() - started
    spent = processor_seconds() - processor
    _settle()
    return Turn(images, passed, spent)


def memory(who: Contestant, epochs: int) -> list[int]:
    """Return the bytes that this process and its workers keep, after each of so many epochs."""
    torch.set_num_threads(1)
    loader = _loader(who, who.data.shards(_kind(who), 1))
    kept = []
    for _ in range(epochs):
        for _batch in loader:
            pass
        kept.append(_resident())
    loader.close()
    return kept


def first_batch(who: Contestant) -> float:
    """Return how many seconds a data module takes from the end of ``setup`` to its first batch."""
    from ..datamodule import ShardDataModule

    split = _split(who, who.data.shards(_kind(who)))
    workers, threads = _engine(who)
    data = ShardDataModule(split, batch_size=BATCH, workers=workers, threads=threads)
    data.prepare_data()
    data.setup("fit")
    started = time.perf_counter()
    batches = iter(data.train_dataloader())
    next(batches)
    seconds = time.perf_counter() - started
    data.teardown()
    return seconds


def _batches(who: Contestant) -> Iterator[Any]:
    if who.name in loader_peers.PEERS:
        try:
            return loader_peers.PEERS[who.name][2](who.data, who.group, who.workers)
        except (ImportError, RuntimeError, AttributeError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error
    loader = _loader(who, who.data.shards(_kind(who)))
    return (batch for _ in iter(int, 1) for batch in loader)


def _kind(who: Contestant) -> str:
    return next(kind for kind in _KINDS if kind in who.name)


def _engine(who: Contestant) -> tuple[int, int]:
    """Return workers and threads."""
    return (0, who.workers) if who.name.endswith("threads") else (who.workers, 0)


def _split(who: Contestant, shards: list[Path]) -> Split:
    return Split(shards, RandomResizedCrop(SIZE), flip=0.5 * (who.group == "float32"))


def _loader(who: Contestant, shards: list[Path]) -> Loader:
    split = _split(who, shards)
    pixels = PixelFormat(MEAN, STD, torch.float32) if who.group == "float32" else PixelFormat()
    workers, threads = _engine(who)
    config = LoaderConfig(BATCH, workers=workers, threads=threads, pixels=pixels)
    return Loader(split.open(), split, config, shuffle=True, keys=False, rank=0, world=1)


class _Alone:
    """Processes that do nothing but ask for sizes, draw boxes and decode, each by itself."""

    def __init__(self, who: Contestant) -> None:
        self._children = [Processes(1) for _ in range(who.workers)]
        for number, child in enumerate(self._children):
            child.submit(prepare_alone, who, number).result()

    def turn(self, seconds: float) -> Turn:
        running = [child.submit(run_alone, seconds) for child in self._children]
        made: list[Turn] = [one.result() for one in running]
        rate = sum(part.images / part.seconds for part in made)
        images = sum(part.images for part in made)
        return Turn(images, images / rate, sum(part.processor for part in made))


def prepare_alone(who: Contestant, number: int) -> None:
    """Open what ``run_alone`` decodes, in an order of its own."""
    torch.set_num_threads(1)
    shards = Shards(who.data.shards(_kind(who)))
    order = np.random.default_rng(number).permutation(len(shards))
    options: dict[str, Any] = {}
    if who.group == "float32":
        options = {"mean": MEAN, "std": STD, "dtype": torch.float32}
    out = torch.zeros((BATCH, SIZE, SIZE, 3), dtype=getattr(torch, who.group)).permute(0, 3, 1, 2)
    batches = [shards.images(ids) for ids in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH)]
    _open["job"] = (batches, options, out, iter(()))


def run_alone(seconds: float) -> Turn:
    """Decode for ``seconds``."""
    batches, options, out, left = _open["job"]
    crop, generator, images = RandomResizedCrop(SIZE), np.random.default_rng(0), 0
    processor, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds or not images:
        jpegs = next(left, None)
        if jpegs is None:
            left = iter(batches)
            continue
        boxes = crop.boxes(decode.image_sizes(jpegs).numpy(), generator.random((BATCH, crop.draws)))
        flips = torch.from_numpy(generator.random(BATCH) < 0.5) if options else None
        decode.decode_batch(jpegs, torch.from_numpy(boxes), SIZE, flips, out=out, threads=1, **options)
        images += BATCH
    _open["job"] = (batches, options, out, left)
    return Turn(images, time.perf_counter() - started, time.process_time() - processor)


def _settle() -> None:
    """Wait until what was begun ahead is done: it would take part in another's turn."""
    before = processor_seconds()
    for _ in range(100):
        time.sleep(0.05)
        now = processor_seconds()
        if now - before < 0.015:
            return
        before = now


def processor_seconds() -> float:
    """Add up the processor time of this process and those below it."""
    total = 0
    for pid in _family():
        fields = _read(pid, "stat").rpartition(")")[2].split()
        total += sum(map(int, fields[11:13]))
    return total / _TICKS


def _resident() -> int:
    """Add up RssAnon and RssShmem of this process and those below it, in bytes."""
    lines = [line.split() for pid in _family() for line in _read(pid, "status").splitlines()]
    return sum(1024 * int(line[1]) for line in lines if line[:1] in (["RssAnon:"], ["RssShmem:"]))


def _family() -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _read(int(entry.name), "stat").rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1]) if fields else 0
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""  # it has ended meanwhile

"""Opens shards that are streams, by webdataset or fsspec, and takes their members."""
# MERGED: Shards that are read as streams, from wherever: webdataset's pipeline up to the samples' bytes.

from __future__ import annotations

import hashlib
import itertools
import lzma
import os
import random
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from braceexpand import braceexpand

from ..errors import ShardError
from ..sampling import rng
from .index import IMAGE_EXTENSIONS
from .labels import integer, missing, no_integer
from .paths import expand, is_url
from .tar import streamed_members


class Opener:
    """Opens shards one after another and knows which it is at, for the message when it fails."""

    url = ""
    stream: Any = None

    def members(self, urls: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield members as webdataset's expander does, which takes a damaged header for a shard's end."""
        for url, stream in self._opened(urls):
            for name, content in streamed_members(stream, url):
                yield {"fname": name, "data": content, "__url__": url}
            yield {}  # no sample goes on in the next shard

    def _opened(self, urls: Sequence[str]) -> Iterator[tuple[str, BinaryIO]]:
        from webdataset.gopen import Pipe

        for self.url in urls:
            self.stream = stream = _open(self.url)
            try:
                yield self.url, stream
                # A command that failed half-way says so at its end only; and one that cannot write its last
                # bytes (tars are padded) would fail for that.
                while stream.read(1 << 20):
                    pass
            except BaseException:
                # Given up: nobody wants to wait for a server that stalls, nor to know how its command ends.
                if isinstance(stream, Pipe):
                    stream.proc.kill()
                    stream.ignore_errors = True
                raise
            finally:
                stream.close()

    def status(self) -> str:
        """Say how the command ended that the shard comes from: its output tells less than that."""
        process = getattr(self.stream, "proc", None)
        if process is None:
            return ""
        process.stdout.close()
        try:
            status = process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return ""
        return f" (its command ended with status {status})" if status > 0 else ""


def _open(url: str) -> BinaryIO:
    """Open a URL by webdataset's commands (curl, gsutil, pipe:) or else by fsspec; a path as a file."""
    from webdataset.gopen import gopen, gopen_schemes

    scheme = url.partition(":")[0].lower() if is_url(url) else ""
    is_known = scheme in ("", "file") or scheme in gopen_schemes
    if is_known and not (scheme in ("http", "https") and shutil.which("curl") is None):
        stream: BinaryIO = gopen(url)
        return stream
    import fsspec

    opened: BinaryIO = fsspec.open(url, "rb").open()
    return opened


Int64 = npt.NDArray[np.int64]
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_SHARDS = 1 << 32  # what permutations of shards are drawn for, apart from the uses that order.py has
_BROKEN = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, ImportError, OverflowError, RecursionError),
    *(tarfile.TarError, zlib.error, lzma.LZMAError, subprocess.SubprocessError),
)


@dataclass(frozen=True)
class Streaming:
    """Read shards as streams, of which nothing is known beforehand: URLs, ``pipe:`` commands, or local files.

    ``samples``: how many make an epoch, over all ranks; an epoch then has a length, and reads the shards
    again where they hold fewer. Several ranks need it: what each of them reads is not equally much. Without
    it an epoch is one pass over all shards. ``buffer``: how many samples a process holds to shuffle them.

    What it promises is weaker than what an index does:

    - Each rank and each worker process reads shards of its own, so there must be as many; order and batches
      depend on the numbers of ranks and workers. For these fixed, they are a function of seed and epoch.
    - Without ``samples`` every sample comes exactly once an epoch. With it ranks have equally many batches,
      of exactly ``samples`` in all, but some samples may come twice and others not in that epoch.
    - Samples are shuffled within the buffer, and shards as a whole: neighbours stay near each other.
    - The crop of a sample is a function of seed, epoch, its URL and its place there, wherever it is read.
    - Going on from a checkpoint within an epoch delivers the batches that were left, of samples drawn anew;
      without ``samples``, the whole epoch.
    - A broken image is replaced by another of the same batch.
    - There is no ``subset`` and there are no ``weights``.
    """

    samples: int | None = None
    buffer: int = 1000

    def __post_init__(self) -> None:
        for name in ("samples", "buffer"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} of Streaming must be a whole number of at least 1")


def expand_urls(source: Source) -> tuple[str, ...]:
    """Name the shards of a source: URLs with braces as in bash, or whatever names local shards.

    Raises ShardError for local shards that are not there, and for one that is named twice.
    """
    names: list[str] = []
    for part in [source] if isinstance(source, (str, os.PathLike)) else source:
        text = os.fspath(part)
        names += braceexpand(text) if is_url(text) else [str(path.absolute()) for path in expand(text)]
    if not names:
        raise ShardError(f"source={source!r} names no shard")
    twice = (
        next((name for name in names if names.count(name) > 1), None)
        if len(set(names)) < len(names)
        else None
    )
    if twice is not None:
        raise ShardError(f"shard {twice} is named twice by source={source!r}: its samples would come twice.")
    return tuple(names)


class Held:
    """Samples in memory, as webdataset gives them; numbered by hashes of their URLs and places there."""

    def __init__(self, samples: Sequence[dict[str, Any]]) -> None:
        """Hold the samples; ``ids`` are their numbers, int64 [B]."""
        self.ids = np.array([_number(sample) for sample in samples], np.int64)
        self._samples = dict(zip(self.ids.tolist(), samples, strict=True))

    def __len__(self) -> int:
        return len(self.ids)

    def images(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Take the images of samples ids [B]: uint8 [n] each."""
        contents = [image_of(self._samples[id]) or b"" for id in np.asarray(ids).tolist()]
        return [torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for content in contents]

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> torch.Tensor:
        """Read the labels of samples ids [B]: int64 [B]. ShardError as Shards.labels."""
        labels = []
        for id in np.asarray(ids).tolist():
            text = self.member(id, extension)
            if text is None:
                raise missing(self, id, extension)
            label = integer(text)
            if label is None:
                raise no_integer(self, id, extension, text)
            labels.append(label)
        return torch.tensor(labels, dtype=torch.int64)

    def member(self, id: int, extension: str) -> bytes | None:
        """Take the sample's member of that extension, or None where it has none."""
        content: bytes | None = self._samples[id].get(extension.removeprefix(".").lower())
        return content

    def extensions(self, id: int) -> list[str]:
        """List the extensions of the sample's members."""
        return [name for name in self._samples[id] if not name.startswith("__")]

    def key(self, id: int) -> str:
        """Name the sample."""
        return str(self._samples[id]["__key__"])

    def shard(self, id: int) -> str:
        """Name the URL that the sample came from."""
        return str(self._samples[id]["__url__"])


class Share(NamedTuple):
    """What one worker of a rank reads in an epoch that begins, or goes on, with batch ``first``."""

    epoch: int
    first: int
    worker: int
    workers: int


class Streamed(NamedTuple):
    """A ``Request`` that brings its samples with it."""

    epoch: int
    ids: Int64
    occurrence: Int64
    held: Held
    notes: list[str]


@dataclass(frozen=True)
class Stream:
    """What one rank reads, in all its worker processes; pickles."""

    urls: tuple[str, ...]
    rank: int
    world: int
    seed: int
    shuffle: bool
    buffer: int
    is_endless: bool

    def requests(
        self, epoch: int, first: int, sizes: Iterable[int], drop_last: bool, worker: int = 0, workers: int = 1
    ) -> Iterator[Streamed]:
        """Fill batches of these sizes from this worker's share of the shards; ShardError, naming the URL.

        ``first``: the batch of the epoch that begins the list; another one draws other samples.
        """
        notes: list[str] = []
        samples = self._samples(Share(epoch, first, worker, workers), notes)
        for size in sizes:
            batch = list(itertools.islice(samples, size))
            if not batch or (len(batch) < size and drop_last):
                return
            held = Held([sample for _, sample in batch])
            yield Streamed(epoch, held.ids, np.array([pass_ for pass_, _ in batch], np.int64), held, notes[:])
            notes.clear()

    def _samples(self, share: Share, notes: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield samples that have an image, with the number of the pass over the shards that they come in."""
        is_told = False
        for turn in itertools.count() if self.is_endless else (0,):
            count = 0
            for sample in self._pass(share, turn):
                if image_of(sample) is not None:
                    count += 1
                    yield turn, sample
                elif not is_told:
                    is_told = True
                    notes.append(
                        f"shard {sample['__url__']}: key {sample['__key__']!r} has no image and is left out, "
                        "as is every such sample (told once)"
                    )
            if not count:
                raise ShardError(
                    f"there is no image in the shards of rank {self.rank}, such as "
                    f"{self._mine(share.epoch, share.first)[0]}. Images are named KEY.EXTENSION."
                )

    def _mine(self, epoch: int, first: int) -> list[str]:
        """Name the rank's shards: every rank shuffles all of them alike, and takes its share."""
        places = np.arange(len(self.urls))
        if self.shuffle:
            places = rng.permutation(self.seed, epoch, len(self.urls), _SHARDS + first)
        return [self.urls[place] for place in places[self.rank :: self.world]]

    def _pass(self, share: Share, turn: int) -> Iterator[dict[str, Any]]:
        import webdataset
        from webdataset.tariterators import group_by_keys

        current = Opener()
        epoch, first, worker, workers = share
        # webdataset's splitters would ask torch and the environment, which know neither worker nor rank.
        urls = self._mine(epoch, first)[worker::workers]
        order = random.Random(f"tarpeg {self.seed} {epoch} {first} {turn} {self.rank} {worker}")
        if self.shuffle:
            order.shuffle(urls)
        samples = _placed(group_by_keys(current.members(urls)))
        if self.shuffle:
            samples = webdataset.shuffle(self.buffer, rng=order)(samples)
        while True:
            try:
                sample = next(samples, None)
            except _BROKEN as error:
                words = ": ".join(str(word) for word in error.args[:1]) or type(error).__name__
                raise ShardError(
                    f"shard {current.url} cannot be read as a stream: {words}{current.status()}. Check "
                    "the address, the network, and that it is a whole tar."
                ) from error
            if sample is None:
                return
            yield sample


def image_of(sample: dict[str, Any]) -> bytes | None:
    """Take the sample's image, the member that an index would take; None where it has none."""
    extension = next((name for name in IMAGE_EXTENSIONS if name in sample), None)
    return None if extension is None else sample[extension]


def _placed(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Note each sample's place among those of its URL: keys may come again, with other samples."""
    for _, shard in itertools.groupby(samples, lambda sample: sample["__url__"]):
        for place, sample in enumerate(shard):
            sample["__place__"] = place
            yield sample


def _number(sample: dict[str, Any]) -> int:
    name = f"{sample['__url__']}\n{sample['__place__']}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1

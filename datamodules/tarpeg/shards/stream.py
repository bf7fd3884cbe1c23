"""Shards that are read as streams, by webdataset or fsspec, up to the encoded samples of each batch."""

from __future__ import annotations

import hashlib
import itertools
import lzma
import random
import subprocess
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ShardError, check_integer
from ..sampling import rng
from .index import Int64
from .paths import Paths, expand, expand_braces, parts_of, refuse_several_splits, refuse_twice
from .pillow import first_image, image_extension
from .source import Source, plain
from .tar import streamed_members
from .urls import (
    HTTP,
    expand_url,
    failures,
    file_name,
    is_url,
    open_stream,
    public_url,
    reason_of,
    requested_status,
)

_HTTP_ERROR = 22  # curl's status for an answer of the server that is an error, without its number
_UNKNOWN_CERTIFICATE = "the server's certificate is not known: give CURL_CA_BUNDLE, a file with its CA"
_CURL = {
    **{6: "the host was not found", 7: "no connection", 18: "the transfer ended early", 28: "a timeout"},
    **{35: "no secure connection", 51: _UNKNOWN_CERTIFICATE, 60: _UNKNOWN_CERTIFICATE},
    77: "the file of CURL_CA_BUNDLE cannot be read",
}
_NOT_BEGUN = (6, 7, 35, 51, 60, 77)  # of _CURL: what came is empty, not truncated
_SHARDS = 1 << 32  # purpose number of shard permutations; the sampler's own purposes are smaller
_BROKEN = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, ImportError, OverflowError, RecursionError),
    *(tarfile.TarError, zlib.error, lzma.LZMAError, subprocess.SubprocessError),
)


@dataclass(frozen=True)
class Streaming:
    """Read shards as streams, without an index: URLs, ``pipe:`` commands, or local files.

    The guarantees are weaker than with an index:

    - Each rank and each worker process reads different shards, so there must be as many shards; order and
      batches depend on the numbers of ranks and workers. For these fixed, they are a function of seed and
      epoch.
    - Without ``samples`` every sample comes exactly once per epoch. With it, ranks have the same number of
      batches, of exactly ``samples`` in total, but some samples may come twice and others not in that epoch.
    - Samples are shuffled within the buffer, and shards as a whole: neighbours stay close to each other.
    - The crop of a sample is a function of seed, epoch, its URL and its position there, in any process. The
      URL counts with its query and password: with a new signature crops are others, also after a resume.
    - Resuming within an epoch delivers the remaining number of batches, of samples drawn again; without
      ``samples``, the whole epoch.
    - A broken image is replaced by another of the same batch; a batch of broken images alone, such as a last
      batch of one, is an error. ``drop_last=True`` leaves that out; ``Streaming(samples=...)`` has no smaller
      last batch.
    - There is no ``subset`` and there are no ``weights``.

    Args:
        samples: Samples per epoch, over all ranks. An epoch then has a length, and reads the shards again if
            they have fewer. Several ranks need it, because their shards have different numbers of samples.
            Without it, an epoch is one pass over all shards.
        buffer: Samples in the shuffle buffer of each process.

    Example:
        >>> streaming = tarpeg.Streaming(samples=64, buffer=16)
        >>> split = tarpeg.Split(shards, tarpeg.RandomCrop(96), streaming=streaming)
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=8, workers=0)
        >>> len([batch for batch in data.train_dataloader()])  # 32 samples, twice
        8
    """

    samples: int | None = None
    buffer: int = 1000

    def __post_init__(self) -> None:
        for name in ("samples", "buffer"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, of=self)


def expand_urls(source: Paths) -> tuple[str, ...]:
    """Expand a source to URLs, with braces as in bash, and absolute paths of local shards.

    fsspec finds the matches of a URL that is a glob, and the *.tar of one that ends in a slash. Raises
    ShardError for local shards that do not exist, URLs without a match, braces that do not match, and a
    shard that comes twice.
    """
    names: list[str] = []
    for part in parts_of(source):
        if not is_url(part):
            names += (str(path.absolute()) for path in expand(part, is_split=True))
            continue
        for url in expand_braces(part, public_url(part)):
            found = expand_url(url)
            if url.endswith("/"):
                refuse_several_splits(url, map(file_name, found))
            names += found
    if not names:
        raise ShardError(f"{source!r} has no shards. Give URLs or paths.")
    refuse_twice(names, source)
    return tuple(names)


class StreamedSamples(Source):
    """Samples in memory, in webdataset's form; numbered by hashes of their URLs and positions there."""

    def __init__(self, samples: Sequence[dict[str, Any]], several: bool = False) -> None:
        """Compute ``ids``, the numbers of the samples: int64 [B]. ``several``: see ``Shards``."""
        self.ids = np.array([_number(sample) for sample in samples], np.int64)
        self._samples = dict(zip(self.ids.tolist(), samples, strict=True))
        self._several = several

    def __len__(self) -> int:
        return len(self.ids)

    def images(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Return the encoded images of samples ids [B]: uint8 [n] each."""
        samples = [self._samples[id] for id in np.asarray(ids).tolist()]
        contents = [sample[first_image(sample)] for sample in samples]
        return [torch.from_numpy(np.frombuffer(content, np.uint8).copy()) for content in contents]

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
        """Return the samples' members of that extension; None for samples without."""
        return [self._samples[id].get(plain(extension)) for id in np.asarray(ids).tolist()]

    def image_is(self, ids: npt.ArrayLike, extension: str) -> list[bool]:
        """Whether the image of each sample is its member of that extension; False with ``several``."""
        name, samples = plain(extension), [self._samples[id] for id in np.asarray(ids).tolist()]
        return [not self._several and image_extension(sample) == name for sample in samples]

    def extensions(self, id: int) -> list[str]:
        """Extensions of the sample's members."""
        return [name for name in self._samples[id] if not name.startswith("__")]

    def keys(self, ids: npt.ArrayLike) -> list[str]:
        """Keys of samples ids [B]."""
        return [str(self._samples[id]["__key__"]) for id in np.asarray(ids).tolist()]

    def shard(self, id: int) -> str:
        """URL of the shard with the sample."""
        return public_url(str(self._samples[id]["__url__"]))


class StreamRequest(NamedTuple):
    """A ``Request`` with its samples, and ``notes``, warnings about the shards that were read for it."""

    epoch: int
    ids: Int64
    occurrence: Int64
    samples: StreamedSamples
    notes: list[str]


@dataclass(frozen=True)
class Stream:
    """The shards of one rank, for all its worker processes; pickles.

    With ``several``, samples may have several images, see ``Shards``.
    """

    urls: tuple[str, ...]
    rank: int
    world: int
    seed: int
    shuffle: bool
    buffer: int
    is_endless: bool
    several: bool = False

    def requests(
        self, epoch: int, first: int, sizes: Iterable[int], drop_last: bool, worker: int = 0, workers: int = 1
    ) -> Iterator[StreamRequest]:
        """Fill batches from this worker's shards. Raises ShardError with the URL.

        Args:
            epoch: Number of the epoch.
            first: Number of the first batch in the epoch; another one draws other samples.
            sizes: Sizes of the batches.
            drop_last: Leave out an incomplete last batch.
            worker: Number of this worker.
            workers: Number of all workers.
        """
        notes: list[str] = []
        # webdataset's splitters would ask torch and the environment, which have neither worker nor rank.
        urls = self._urls(epoch, first)[worker::workers]
        samples = self._samples(urls, f"{epoch} {first} {{}} {self.rank} {worker}", notes)
        for size in sizes:
            batch = list(itertools.islice(samples, size))
            if not batch or (len(batch) < size and drop_last):
                return
            streamed = StreamedSamples([sample for _, sample in batch], self.several)
            occurrence = np.array([occurrence for occurrence, _ in batch], np.int64)
            yield StreamRequest(epoch, streamed.ids, occurrence, streamed, notes[:])
            notes.clear()

    def _samples(
        self, urls: list[str], stream: str, notes: list[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield samples that have an image, with the number of their pass over the shards."""
        is_noted, image_of = False, first_image if self.several else image_extension
        for number in itertools.count() if self.is_endless else (0,):
            count = 0
            for sample in self._pass(urls[:], random.Random(f"tarpeg {self.seed} {stream.format(number)}")):
                if image_of(sample) is not None:
                    count += 1
                    yield number, sample
                elif not is_noted:
                    is_noted = True
                    notes.append(
                        f"shard {public_url(sample['__url__'])}: key {sample['__key__']!r} has no image and "
                        "is left out, as is every such sample (reported once per pass over the shards)"
                    )
            if not count:
                raise ShardError(
                    f"there is no image in the shards of rank {self.rank}, such as "
                    f"{public_url(urls[0])}. Images are named KEY.EXTENSION."
                )

    def _urls(self, epoch: int, first: int) -> list[str]:
        """URLs of the rank's shards: all ranks draw the same permutation, and each takes its part."""
        places = np.arange(len(self.urls))
        if self.shuffle:
            places = rng.permutation(self.seed, epoch, len(self.urls), _SHARDS + first)
        return [self.urls[place] for place in places[self.rank :: self.world]]

    def _pass(self, urls: list[str], order: random.Random) -> Iterator[dict[str, Any]]:
        """Read the shards once, shuffled by order."""
        import webdataset
        from webdataset.tariterators import group_by_keys

        opener = _Opener()
        if self.shuffle:
            order.shuffle(urls)
        samples = _placed(group_by_keys(opener.members(urls)))
        if self.shuffle:
            samples = webdataset.shuffle(self.buffer, rng=order)(samples)
        try:
            yield from samples
        except failures(*_BROKEN) as error:
            if "duplicate file name" in str(error):  # webdataset's words, after the name
                name = str(error.args[0]).partition(": duplicate")[0]
                raise ShardError(
                    f"shard {public_url(opener.url)}: the sample of {name!r} has two members of this "
                    "extension. Write each member once"
                ) from error
            raise ShardError(
                f"shard {public_url(opener.url)} cannot be read as a stream: {opener.reason(error)}. "
                "Check the address, access rights, the network, and that it is a complete tar."
                f"{_of_folder(opener.url)}"
            ) from error


def _of_folder(url: str) -> str:
    """Return the remedy for a URL that looks like that of a folder; "" for others."""
    is_named = "." in file_name(url) or url.startswith("pipe:")
    return "" if is_named or not is_url(url) else " The URL of a folder ends in a slash."


class _Opener:
    """Opens shards one after another; keeps the current URL and stream for error messages."""

    url = ""
    stream: Any = None

    def members(self, urls: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Yield members in the form of webdataset's expander, which takes a damaged header for the end."""
        for url, stream in self._opened(urls):
            for name, content in streamed_members(stream, public_url(url)):
                yield {"fname": name, "data": content, "__url__": url}
            yield {}  # no sample continues in the next shard

    def _opened(self, urls: Sequence[str]) -> Iterator[tuple[str, BinaryIO]]:
        from webdataset.gopen import Pipe

        for self.url in urls:
            stream = open_stream(self.url)
            self.stream = stream
            try:
                yield self.url, stream
                # Read to the end: a command fails if it cannot write its last bytes (tars are padded), and
                # one that failed half-way reports it at its end only.
                while stream.read(1 << 20):
                    pass
            except BaseException:
                # The consumer stopped: kill the command and ignore its exit status.
                if isinstance(stream, Pipe):
                    stream.proc.kill()
                    stream.ignore_errors = True
                raise
            finally:
                stream.close()

    def reason(self, error: BaseException) -> str:
        """Reason of an error, with the status of the shard's command: broken output does not show it."""
        status = self._status()
        if HTTP.match(self.url) and status == _HTTP_ERROR:
            return requested_status(self.url)
        if HTTP.match(self.url) and isinstance(error, TimeoutError):
            # curl is silent while it repeats a request that a busy server refuses.
            silent, answer = reason_of(error, self.url), requested_status(self.url)
            is_refused = answer[:1] in ("4", "5")
            return (
                f"no data, but the answer {answer}" if is_refused else f"{silent}; another request: {answer}"
            )
        ended = f"its command ended with status {status}"
        if HTTP.match(self.url) and status in _CURL:
            ended = f"{_CURL[status]} (curl ended with status {status})"
        if status > 0 and (isinstance(error, OSError) or (HTTP.match(self.url) and status in _NOT_BEGUN)):
            return ended  # the error has nothing but the command and its status
        # webdataset appends the URL to the arguments of errors.
        is_appended = len(error.args) > 1 and not isinstance(error, OSError)
        words = str(error.args[0]) if is_appended else reason_of(error, self.url)
        return f"{words}{f' ({ended})' if status > 0 else ''}"

    def _status(self) -> int:
        """Exit status of the shard's command; 0 without one, and if it still runs."""
        process = getattr(self.stream, "proc", None)
        if process is None:
            return 0
        process.stdout.close()
        try:
            return int(process.wait(timeout=1))
        except subprocess.TimeoutExpired:
            return 0


def _placed(samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Add each sample's position in its URL, because a key may come again with another sample."""
    for _, shard in itertools.groupby(samples, lambda sample: sample["__url__"]):
        for place, sample in enumerate(shard):
            sample["__place__"] = place
            yield sample


def _number(sample: dict[str, Any]) -> int:
    name = f"{sample['__url__']}\n{sample['__place__']}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1

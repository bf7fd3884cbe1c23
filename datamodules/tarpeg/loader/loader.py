"""Loaders: batches of one split for one rank, in order, from any batch on."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..errors import DecodeError, ResumeError, ShardError, allowed_bad, warn
from ..machine import read_machine
from ..sampling.sampler import DistributedBatchSampler, EpochCounter, Request, Sampler
from ..shards.labels import Samples
from ..shards.mapped import Shards
from .batch import AnyBatch, FetchResult, without_rows
from .buffers import PrefetchRunner, Runner, ToRequest
from .config import LoaderConfig, PixelFormat
from .split import Split

# A data set in which every tenth image is broken must not flood the terminal.
_MOST_WARNINGS = 20
# Batches delivered and not yet claimed; Lightning fetches at most one ahead.
_MOST_UNCLAIMED = 64
# Delivered batches, of which none was claimed, after which a loader warns that they are not augmented.
_MOST_PLAIN = 4
# Default of readahead, in batches: some 50 MB for 64 images of 100 kB.
_READAHEAD = 8
_NO_WORKERS = "must be 0: the loader has its own, see workers= and threads= of ShardDataModule"
_REMEDIES = {
    "global_batch": " (batch_size= times the ranks; global_batch_size= fixes it for any number of ranks)",
    "samples": " (the shards and subset=)",
    "order": " (shuffle=, subset=, weights= and repeats= of the split)",
}


class BaseLoader(ABC):
    """Batches of one split for one rank; iterate it again for the next epoch.

    Each ``iter()`` advances the epoch, unless ``loader.sampler.set_epoch(e)`` set it. A new iterator
    invalidates the previous one. A batch that is kept is never overwritten.

    ``state_dict()`` is the position; after ``load_state_dict()`` a loader continues there, without replaying
    anything. ``fetcher`` reads and decodes the samples. ``substituted`` counts the images that were replaced.
    """

    # Lightning looks for both; it takes a loader without them for a shuffling one, or crashes.
    batch_sampler = None
    sampler: EpochCounter
    unclaimed_notice = ""
    """Warning, shown once, if the batches are not augmented: if no request is claimed."""
    uint8_notice = (
        "the images are uint8: give the ShardDataModule augment=tarpeg.Augment(), which normalises, and the "
        "Trainer the ShardDataModule itself; or convert them in the model"
    )
    """Warning, if a Trainer's run ends because the model did not take uint8."""
    measured = ""
    """Name of the val or test split whose substitutes are counted in a warning; "" for other splits."""

    def __init__(
        self,
        shards: Samples,
        split: Split,
        config: LoaderConfig,
        order: Sampler | None,
        samples: int | None,
        *,
        keys: bool,
        rank: int,
        world: int,
        to_request: ToRequest | None = None,
    ) -> None:
        # This import loads the operators; importing this module must not.
        from .fetch import Fetcher

        self.sampler = EpochCounter()
        self.substituted = 0
        self.split, self.config = split, config
        total = config.global_batch_size or config.batch_size * world
        count = total if samples is None else samples
        self._batches = DistributedBatchSampler(
            count, total, world, config.drop_last, takes_turns=split.repeats > 1
        )
        candidates = None if order is None else order.candidates()
        self.fetcher = Fetcher(
            *(shards, split, config.seed, config.on_error, keys, config.pixels, candidates),
            *(config.max_pixels, config.leaves_out),
        )
        self._to_request = to_request
        self._runner = make_runner(self.fetcher, config, to_request)
        self._rank = rank
        self._epoch = self._delivered = self._iterations = 0
        self._has_warned_of_non_jpeg = False
        self._unclaimed: deque[Request] = deque(maxlen=0)

    def __len__(self) -> int:
        """Batches per epoch, equal on every rank and independent of resuming."""
        return len(self._batches)

    def __iter__(self) -> Iterator[AnyBatch]:
        return self.batches(self.config.pixels)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse an index, which a DataLoader would use."""
        raise TypeError(
            f"loader[{index!r}]: a loader of ShardDataModule makes whole batches, in order. Iterate over it; "
            "for a tool that takes a DataLoader: DataLoader(tarpeg.Dataset(loader), batch_size=None)"
        )

    def batches(self, pixels: PixelFormat) -> Iterator[AnyBatch]:
        """Yield the next epoch as ``iter()`` does, with images in another format than the loader's own."""
        if pixels != self.fetcher.pixels:
            self.close()  # the workers have the fetcher, and batches in the other format
            self.fetcher = replace(self.fetcher, pixels=pixels, _found={})
            self._runner = make_runner(self.fetcher, self.config, self._to_request)
        # Lightning makes an iterator before it sets the epoch: a generator reads it at the first next().
        self._iterations += 1
        iteration = self._iterations
        self._epoch, self._delivered = self.sampler.begin()
        self._unclaimed = deque(maxlen=_MOST_UNCLAIMED)
        before = self.substituted
        for result in self._results():
            error = result.error
            if result.substituted or result.notes or result.non_jpeg is not None:
                self._warn(result)
                error = error or self._excess(result, self.substituted - before)
            if error is not None:
                self.close()
                try:
                    raise error
                finally:
                    del result, error  # the error holds this frame, which must not hold the error
            batch, request = result.batch, result.request
            assert batch is not None
            assert request is not None
            if result.left_out:
                batch, request = without_rows(batch, request, result.left_out, len(self.split.pipelines) > 1)
            self._delivered += 1
            if self.measured and self.substituted > before and self._delivered == len(self):
                self._sum_up(self.substituted - before)
            self._unclaimed.append(request)
            if self.unclaimed_notice and len(self._unclaimed) == _MOST_PLAIN:
                notice, self.unclaimed_notice = self.unclaimed_notice, ""
                warn(notice)
            del result  # memory that the consumer releases while it waits for the next batch is free at once
            yield batch
            del batch
            if self._iterations != iteration:
                raise RuntimeError(
                    "this iterator was retired by a newer one of the same loader, or by close(); "
                    "use a loader of its own for each loop that runs at the same time"
                )

    def claim(self) -> Request | None:
        """Pop the request of the oldest batch that was delivered and not claimed; None if there is none.

        A batch has images and labels only: code that needs its sample ids calls this once per batch, in the
        order of delivery.
        """
        self.unclaimed_notice = ""
        return self._unclaimed.popleft() if self._unclaimed else None

    def state_dict(self) -> dict[str, int]:
        """Position of this loader: plain integers, equal on all ranks."""
        return {"epoch": self._epoch, "batches": self._delivered, "len": len(self), **self.facts()}

    @abstractmethod
    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position in ``state``."""

    @abstractmethod
    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""

    def check_ranks(self) -> None:
        """Raise ValueError if ``torch.distributed`` has other ranks than those of this loader."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if (rank, world) != (self._rank, self._batches.world):
            raise ValueError(
                f"this loader is of rank {self._rank} of {self._batches.world}, but the process is rank "
                f"{rank} of {world}. Create the loader after torch.distributed is initialised: after "
                "Fabric.launch(), for example."
            )

    def compare_over_ranks(self, name: str) -> None:
        """Raise if ranks would not agree on the batches: different counts deadlock or corrupt collectives."""
        world = self._batches.world
        if world == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        mine = {"batches": len(self), **self.facts()}
        ranks: list[Any] = [None] * world
        torch.distributed.all_gather_object(ranks, mine)
        for rank, theirs in enumerate(ranks):
            if theirs != ranks[0]:
                raise ShardError(
                    f"the {name} split is {ranks[0]} on rank 0 but {theirs} on rank {rank}. "
                    "Give every rank the same shards, seed and batch size."
                )

    def close(self) -> None:
        """Stop processes, threads and the iterator. Idempotent; iterating again starts new ones."""
        self._iterations += 1
        self._runner.close()

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None when a run ends for any reason: see _iterator.setter."""
        return None

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        error = sys.exc_info()[1]  # the cause of the run's end
        if self.uint8_notice and error is not None and re.search("unsigned char|Byte", str(error)):
            warn(self.unclaimed_notice or self.uint8_notice)
        self.close()

    @abstractmethod
    def _results(self) -> Iterator[FetchResult]:
        """Fetch the remaining batches of the epoch."""

    def _expected_samples(self) -> float:
        """Return the samples per rank of which ``max_bad`` is a fraction."""
        return self._batches.samples / self._batches.world

    def _excess(self, result: FetchResult, bad: int) -> DecodeError | None:
        """Error for more undecodable images than ``max_bad`` allows."""
        share, samples = self.config.max_bad, self._expected_samples()
        if not result.substituted or bad <= allowed_bad(share, samples):
            return None
        return DecodeError(
            f"{bad} images of epoch {self._epoch} could not be decoded, more than max_bad={share} of the "
            f"{samples:.0f} on this rank; the last: {result.substituted[-1]}. "
            "Repair the shards, or raise max_bad."
        )

    def _sum_up(self, bad: int) -> None:
        """Warn, on each rank, how many images of an epoch were substituted."""
        name, self.measured = self.measured, ""
        where = f" on rank {self._rank}" if self._batches.world > 1 else ""
        warn(
            f"{name}: {bad} of {self._expected_samples():.0f} images{where} cannot be decoded: metrics count "
            "the samples in their place. tarpeg.build_cache leaves such images out."
        )

    def _warn(self, result: FetchResult) -> None:
        """Warn about the images of a batch; only rank 0 warns, others count."""
        if self._rank:
            self.substituted += len(result.substituted)
            return
        if result.non_jpeg is not None and not self._has_warned_of_non_jpeg:
            self._has_warned_of_non_jpeg = True
            warn(
                f"{result.non_jpeg}: Pillow decodes such images, several times slower than a JPEG "
                "(further ones are not reported)"
            )
        for text in result.notes:
            warn(text)
        for text in result.substituted:
            self.substituted += 1
            if self.substituted <= _MOST_WARNINGS:
                last = "; further ones are only counted" * (self.substituted == _MOST_WARNINGS)
                warn(text + last)


class Loader(BaseLoader):
    """A loader of indexed shards or of a folder of images.

    Every sample comes exactly once per epoch over all ranks; order and crops depend on seed and epoch alone.
    """

    def __init__(
        self,
        shards: Samples,
        split: Split,
        config: LoaderConfig,
        *,
        shuffle: bool,
        keys: bool,
        rank: int,
        world: int,
    ) -> None:
        self._order = order = split.sampler(shards, config.seed, shuffle)
        super().__init__(shards, split, config, order, len(order), keys=keys, rank=rank, world=world)
        self._readahead = readahead_depth(shards, config.readahead)
        # Results in the order of requests, and the position (epoch, batch, process id) of the next one.
        self._flow: Iterator[FetchResult] | None = None
        self._position = (0, 0, 0)
        # A shuffled split is trained on, epoch after epoch: the next epoch is prefetched while this one ends.
        self._is_continuous = shuffle
        self._continues: Callable[[int], bool] = lambda epoch: False

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue where the loader of ``state`` was; the number of ranks may differ.

        Raises ``ValueError`` for a state within an epoch of which this loader would make other batches: with
        another global batch size, seed or number of samples.
        """
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        for name, value in self.facts().items():
            if batches and not is_end and state[name] != value:
                raise ResumeError(
                    f"cannot resume at batch {batches} of epoch {epoch}: {name} was {state[name]} when the "
                    f"checkpoint was made and is {value} now, which makes other batches. Restore it"
                    f"{_REMEDIES.get(name, '')}, or use a checkpoint from the end of an epoch."
                )
        if batches >= len(self) and not is_end and self._rank == 0:
            left = self._batches.samples - batches * self._batches.global_batch
            warn(
                f"epoch {epoch} ends here: its last {left} samples are fewer than the ranks of this run, "
                f"{self._batches.world}"
            )
        # The epoch of a checkpoint from its end is over, also if batches are smaller, and more, by now.
        self._epoch, self._delivered = epoch, len(self) if is_end else min(batches, len(self))
        self.sampler.resume(epoch, self._delivered, self._delivered == len(self))

    def facts(self) -> dict[str, int]:
        """Return what the batches depend on, apart from the samples' content; equal on all ranks."""
        samples, global_batch = self._batches.samples, self._batches.global_batch
        facts = {"samples": samples, "global_batch": global_batch, "seed": self.config.seed}
        return {"order": self._order.fingerprint(), **facts}

    def close(self) -> None:
        """Stop processes, threads and the iterator. Idempotent; iterating again starts new ones."""
        self._flow = None
        super().close()

    def _results(self) -> Iterator[FetchResult]:
        count, process = len(self), os.getpid
        for k in range(self._delivered, count):
            if self._flow is None or self._position != (self._epoch, k, process()):
                self._flow = self._started(k)
            is_next_epoch = k + 1 == count and self._continues(self._epoch + 1)
            place = (self._epoch + 1, 0) if is_next_epoch else (self._epoch, k + 1)
            self._position = (*place, process())
            yield self._next(self._flow)

    def _started(self, k: int) -> Iterator[FetchResult]:
        """Begin to fetch at batch k of the epoch; prefetched batches of another position are dropped."""
        # No closure here refers to this loader: without cycles, deleting it ends its workers at once.
        fetcher, is_continuous, rank = self.fetcher, self._is_continuous, self._rank
        largest = np.zeros(self._batches.largest(rank), np.int64)
        nbytes = fetcher.nbytes(Request(self._epoch, largest))
        # An epoch with larger batches needs new buffers, so it begins a flow of its own.
        self._continues = lambda epoch: is_continuous and fetcher.nbytes(Request(epoch, largest)) <= nbytes
        requests = self._batches.requests(self._order, rank, self._epoch, k, self._continues)
        if self._readahead and isinstance(fetcher.shards, Shards):
            requests = read_ahead(requests, self._readahead, partial(will_need, fetcher.shards))
        return self._runner.run(requests, nbytes)

    def _next(self, flow: Iterator[FetchResult]) -> FetchResult:
        try:
            return next(flow)  # without a variable: only the consumer may hold the batch
        except BaseException:
            self._flow = None  # a generator ends at its first exception
            raise


class Dataset(IterableDataset[Any]):
    """A loader for tools that take a ``DataLoader``: ``DataLoader(tarpeg.Dataset(loader), batch_size=None)``.

    Its items are the loader's batches. ``batches``: a function that returns the batches of the loader's next
    epoch, for example ``data.augmented``; by default those of the loader itself. Each ``iter()`` is the next
    epoch, unless ``loader.sampler.set_epoch(e)`` set it. ``state_dict()`` is the position behind the last
    batch that was taken: a tool that reads ahead is ahead in it, too.

    The loader has its own rank, workers and memory, so these are errors: ``num_workers`` above 0; a loader
    that was created before ``torch.distributed`` was initialised; and Accelerate's ``prepare`` on several
    processes, which would divide the batches a second time.
    """

    def __init__(self, loader: BaseLoader, batches: Callable[[BaseLoader], Iterator[Any]] = iter) -> None:
        if not isinstance(loader, BaseLoader):
            raise ValueError(
                f"loader={loader!r} must be a loader of ShardDataModule: data.train_dataloader()"
            )
        if isinstance(batches, torch.nn.Module) or not callable(batches):
            raise ValueError(
                f"batches={type(batches).__name__} must be a function that returns the batches of a loader, "
                "such as data.augmented of a ShardDataModule(augment=...)"
            )
        self.loader = loader
        self._batches = batches
        default_collate_fn_map.update(dict.fromkeys(AnyBatch.__args__, _refuse_to_collate))

    def __len__(self) -> int:
        """Batches per epoch; TypeError for a stream without ``samples``."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if (worker := get_worker_info()) is not None:
            raise ValueError(f"num_workers={worker.num_workers} of the DataLoader {_NO_WORKERS}")
        self.loader.check_ranks()
        self._refuse_accelerate()
        return self._batches(self.loader)

    def __reduce__(self) -> Any:
        """Refuse to be pickled: a DataLoader would do it to start its worker processes."""
        raise ValueError(f"a Dataset cannot be pickled, so num_workers of a DataLoader {_NO_WORKERS}")

    def state_dict(self) -> dict[str, int]:
        """Position of the loader: plain integers, equal on all ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue at the position in ``state``."""
        self.loader.load_state_dict(state)

    def _refuse_accelerate(self) -> None:
        """Raise ValueError if Accelerate takes the batches of one rank and divides them over all of them."""
        accelerate: Any = sys.modules.get("accelerate.data_loader")
        if accelerate is None or accelerate.PartialState().num_processes == 1:
            return
        outer = getattr(accelerate.GradientState().active_dataloader, "dataset", None)
        if self in (outer, getattr(outer, "dataset", None)):  # dispatched batches, or an IterableDatasetShard
            raise ValueError(
                "Accelerate would divide the batches of this rank over all ranks. Do not give this "
                "DataLoader to Accelerator.prepare(): the loader has batches of its own on every rank. In a "
                "transformers.Trainer, return it from get_train_dataloader()."
            )


def _refuse_to_collate(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(
        "batch_size= of the DataLoader must be None: the items of a tarpeg.Dataset are batches already"
    )


def make_runner(fetcher: Any, config: LoaderConfig, to_request: ToRequest | None = None) -> Runner:
    """Start nothing yet: worker processes, threads, or the caller's thread, as configured.

    ``to_request``: see ``PrefetchRunner``.
    """
    workers, threads = config.workers_and_threads
    # A transform in Python needs the global random generators, which belong to the thread of the consumer.
    if workers or (threads and not fetcher.split.runs_python):
        return PrefetchRunner(fetcher, workers, threads, config.prefetch, to_request)
    return Runner(fetcher, max(threads, 1))


def readahead_depth(shards: Samples, readahead: int | None) -> int:
    """Return how many batches ahead the system is asked to read bytes; 0 unless the shards are mapped.

    Default: 8 if the shards take more than half of the memory, as the system has then dropped most of what an
    epoch reads; otherwise 0, because asking for bytes in memory costs a little.
    """
    if not isinstance(shards, Shards):
        return 0
    if readahead is not None:
        return readahead
    memory = read_machine().usable_memory
    return _READAHEAD if memory is not None and shards.total_bytes > memory / 2 else 0


def read_ahead(
    requests: Iterable[Request], depth: int, advise: Callable[[Request], None]
) -> Iterator[Request]:
    """Yield the requests, each of them ``depth`` requests after ``advise`` was called with it."""
    waiting: deque[Request] = deque()
    for request in requests:
        advise(request)
        waiting.append(request)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def will_need(shards: Shards, request: Request) -> None:
    """Ask the system to read the images of ``request``, and return at once."""
    advise = ctypes.CDLL(None, use_errno=True).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for view in shards.images(request.ids, check=False):
        start = view.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        nbytes = view.data_ptr() + view.numel() - start
        if nbytes and advise(start, nbytes, mmap.MADV_WILLNEED) and ctypes.get_errno() != errno.EAGAIN:
            reason = os.strerror(ctypes.get_errno())
            raise ShardError(f"reading ahead failed: {reason}. Set readahead=0 to turn it off.")

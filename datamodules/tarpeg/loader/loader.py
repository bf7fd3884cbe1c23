"""Telling the system which bytes will be wanted soon, for shards that are larger than the memory."""
# MERGED: Batches in order, for one rank, from any batch on.

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import DecodeError, ShardError
from ..machine import read_machine
from ..sampling.batches import BatchPlan, EpochCounter, Requests
from ..sampling.sampler import Request
from ..shards.labels import Samples
from ..shards.mapped import Shards
from .batch import AnyBatch, FetchResult
from .config import LoaderConfig
from .split import Split
from .workers import ProcessRunner, Runner, SerialRunner, ThreadRunner

if TYPE_CHECKING:
    from .fetch import Fetcher

# Batches, where nobody said how many: at 64 images of 100 kB some 50 MB.
_BATCHES = 8


def depth_of(shards: Samples, wish: int | None) -> int:
    """Return how many batches ahead bytes are asked for.

    ``wish`` None: 8 where mapped shards take more than half of the memory, as then most of what an epoch
    reads has been dropped since the epoch before; otherwise 0: asking for what is there costs a little.
    """
    if not isinstance(shards, Shards):
        return 0
    if wish is not None:
        return wish
    memory = read_machine().usable_memory
    return _BATCHES if memory is not None and shards.total_bytes > memory / 2 else 0


def ahead(requests: Iterable[Request], depth: int, soon: Callable[[Request], None]) -> Iterator[Request]:
    """Pass the requests on, each ``depth`` requests after ``soon`` was called with it."""
    waiting: deque[Request] = deque()
    for request in requests:
        soon(request)
        waiting.append(request)
        if len(waiting) > depth:
            yield waiting.popleft()
    yield from waiting


def will_need(shards: Samples, request: Request) -> None:
    """Have the system begin to read the images of ``request``, and return at once."""
    advise = _madvise()
    for view in shards.images(request.ids):
        start = view.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        size = view.data_ptr() + view.numel() - start
        if size and advise(start, size, mmap.MADV_WILLNEED) and ctypes.get_errno() != errno.EAGAIN:
            raise ShardError(
                f"reading ahead failed: {os.strerror(ctypes.get_errno())}. readahead=0 does without."
            )


def _madvise() -> Callable[[int, int, int], int]:
    call = ctypes.CDLL(None, use_errno=True).madvise
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    call.restype = ctypes.c_int
    return call


# A data set where every tenth image is broken should not fill the terminal.
_MOST_WARNINGS = 20
# Where an epoch is small, max_bad of it may be less than one sample.
_FEW_BAD = 10
# Batches that may be between the loader and who asks for their numbers; Lightning fetches one ahead at most.
_MOST_UNCLAIMED = 64


class Loader:
    """Batches of one split for one rank; iterate it again for the next epoch.

    Each ``iter()`` advances the epoch by itself, unless ``loader.sampler.set_epoch(e)`` said which. Every
    sample comes exactly once an epoch over all ranks; order and crops are a function of seed and epoch.
    A new iterator retires the one before it. A batch that is kept is never overwritten.

    ``state_dict()`` says which batch comes next; a loader that is given it by ``load_state_dict()`` goes on
    there, without replaying anything. ``substituted`` counts the images that others stood in for.
    """

    # Lightning looks for both; a loader without them is taken for a shuffling one, or crashes.
    batch_sampler = None

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
        # Importing this loads the operators; importing this module must not.
        from .fetch import Fetcher

        self.sampler = EpochCounter()
        self.substituted = 0
        self.split, self.config, self._rank = split, config, rank
        self._order = split.sampler(shards, config.seed, shuffle)
        total = config.global_batch_size or config.batch_size * world
        self._plan = BatchPlan(len(self._order), total, world, config.drop_last)
        self._fetcher = Fetcher.of(
            shards, split, self._order, seed=config.seed, on_error=config.on_error, keys=keys
        )
        self._fetcher.pixels = config.pixels
        self._engine = engine_of(self._fetcher, config)
        # What is shuffled is trained on, epoch after epoch.
        self._requests = Requests(self._plan, self._order, rank, self._fetcher.nbytes, continues=shuffle)
        self._readahead = depth_of(shards, config.readahead)
        self._flow: Iterator[FetchResult] | None = None
        self._place = (0, 0, 0)  # the epoch and the batch of the next of these answers, and whose they are
        self._turn = 0
        self._epoch = self._batches = 0
        self._told_of_foreign = False
        self._unclaimed: deque[Request] = deque(maxlen=0)

    def __len__(self) -> int:
        """Batches an epoch, equal on every rank, wherever one resumes."""
        return len(self._plan)

    def __iter__(self) -> Iterator[AnyBatch]:
        # Lightning makes an iterator before it says which epoch: a generator asks at the first next().
        self._turn += 1
        turn = self._turn
        self._epoch, self._batches = self.sampler.begin()
        self._unclaimed = deque(maxlen=_MOST_UNCLAIMED)
        before = self.substituted
        for answer in self._answers():
            self._tell(answer)
            error = answer.error or self._too_many(answer, self.substituted - before)
            if error is not None:
                self.close()
                try:
                    raise error
                finally:
                    del answer, error  # the error holds this frame, which must not hold the error
            assert answer.batch is not None
            assert answer.request is not None
            self._batches += 1
            self._unclaimed.append(answer.request)
            batch = answer.batch
            del answer  # what the consumer lets go of while it waits for the next batch is free at once
            yield batch
            del batch
            if self._turn != turn:
                raise RuntimeError(
                    "this iterator was retired by a newer one of the same loader, or by close(); "
                    "ask the data module for a loader of its own"
                )

    def _answers(self) -> Iterator[FetchResult]:
        """Answer the batches of this epoch that are left."""
        for k in range(self._batches, len(self)):
            if self._flow is None or self._place != (self._epoch, k, os.getpid()):
                self._requests.begin(self._epoch, k)
                requests: Iterable[Request] = self._requests
                if self._readahead:
                    soon = partial(will_need, self._fetcher.shards)
                    requests = ahead(requests, self._readahead, soon)
                self._flow = self._engine.run(requests, self._requests.size)
            goes_on = k + 1 == len(self) and self._requests.follow(self._epoch + 1)
            place = (self._epoch + 1, 0) if goes_on else (self._epoch, k + 1)
            yield self._following((*place, os.getpid()))

    @property
    def fetcher(self) -> Fetcher:
        """What reads and decodes the samples."""
        return self._fetcher

    def claim(self) -> Request | None:
        """Tell which samples the batch consists of that was delivered first of those not asked for yet.

        A batch carries no more than images and labels; who draws numbers for its samples asks here, once a
        batch, in the order of config. None where nothing was delivered since.
        """
        return self._unclaimed.popleft() if self._unclaimed else None

    def _following(self, place: tuple[int, int, int]) -> FetchResult:
        """Return the next answer of the flow; ``place`` is of the one after it."""
        assert self._flow is not None
        try:
            self._place = place
            return next(self._flow)  # into no variable: nobody but the consumer is to hold a batch
        except BaseException:
            self._flow = None  # it has ended
            raise

    def state_dict(self) -> dict[str, int]:
        """Say how far this loader is: plain numbers, alike on all ranks."""
        return {"epoch": self._epoch, "batches": self._batches, "len": len(self), **self.facts()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where the loader was that ``state`` came from, on as many ranks as one likes.

        Raises ``ValueError`` where the state is of the midst of an epoch, of which this loader would make
        other batches: another global batch size, seed or number of samples.
        """
        epoch, batches = state["epoch"], state["batches"]
        is_end = batches == state["len"]
        for name, value in self.facts().items():
            if batches and not is_end and state[name] != value:
                raise ValueError(
                    f"cannot go on at batch {batches} of epoch {epoch}: {name} was {state[name]} when the "
                    f"checkpoint was made and is {value} now, which makes other batches. Restore it"
                    f"{_REMEDY.get(name, '')}, or go on from a checkpoint of an epoch's end."
                )
        if batches >= len(self) and not is_end and self._rank == 0:
            left = self._plan.samples - batches * self._plan.global_batch
            warnings.warn(
                f"epoch {epoch} ends here: its last {left} samples are fewer than the ranks that there are "
                f"now, {self._plan.world}",
                stacklevel=2,
            )
        self._epoch, self._batches = epoch, min(batches, len(self))
        self.sampler.resume(epoch, self._batches, self._batches == len(self))

    def close(self) -> None:
        """End processes, threads and the iterator. Idempotent; iterating again starts new ones."""
        self._turn += 1
        self._flow = None
        self._engine.close()

    @property
    def _iterator(self) -> None:
        """Lightning sets this to None when a run ends, whichever way it ends: see _iterator.setter."""

    @_iterator.setter
    def _iterator(self, value: None) -> None:
        self.close()

    def facts(self) -> dict[str, int]:
        """Return what batches depend on, apart from the samples themselves; equal on all ranks."""
        plan, config = self._plan, self.config
        facts = {"samples": plan.samples, "global_batch": plan.global_batch, "seed": config.seed}
        return {"order": self._requests.order.fingerprint(), **facts}

    def _too_many(self, answer: FetchResult, bad: int) -> DecodeError | None:
        return self._judged(answer, bad, self._plan.samples / self._plan.world)

    def _judged(self, answer: FetchResult, bad: int, samples: float) -> DecodeError | None:
        share = self.config.max_bad
        if not answer.substituted or bad <= max(share * samples, _FEW_BAD):
            return None
        return DecodeError(
            f"{bad} images of epoch {self._epoch} could not be decoded, more than max_bad={share} of the "
            f"{samples:.0f} on this rank; the last: {answer.substituted[-1]}. "
            "Mend the shards, or raise max_bad."
        )

    def _tell(self, answer: FetchResult) -> None:
        """Warn, on behalf of the frame that iterates, of what a worker met; ranks other than 0 just count."""
        if self._rank:
            self.substituted += len(answer.substituted)
            return
        if answer.non_jpeg is not None and not self._told_of_foreign:
            self._told_of_foreign = True
            warnings.warn(
                f"{answer.non_jpeg}: such images are decoded by Pillow, several times slower than a JPEG "
                "(told once)",
                stacklevel=3,
            )
        for text in answer.notes:
            warnings.warn(text, stacklevel=3)
        for text in answer.substituted:
            self.substituted += 1
            if self.substituted <= _MOST_WARNINGS:
                last = "; the loader counts the others in silence" * (self.substituted == _MOST_WARNINGS)
                warnings.warn(text + last, stacklevel=3)


_REMEDY = {
    "global_batch": " (global_batch_size= fixes it for any number of ranks)",
    "order": " (shuffle=, subset= and weights= of the split)",
}


def engine_of(fetcher: Any, config: LoaderConfig) -> Runner:
    """Make the engine that the config asks for."""
    workers, threads = config.workers_and_threads
    if workers:
        return ProcessRunner(fetcher, workers, config.prefetch)
    if threads:
        return ThreadRunner(fetcher, threads, config.prefetch)
    return SerialRunner(fetcher)

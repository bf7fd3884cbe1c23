"""Data-parallel ranks: which share of every batch belongs to this process."""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal

import torch
from torch.utils.data import get_worker_info

from ..errors import ShardError, warn
from ..progress import waiting_for

# A DeviceMesh of one dimension, or a tuple of a DeviceMesh and the names of its data-parallel dimensions.
# Any, because torch.distributed may be missing.
Mesh = Any

ORDER = "training=, shuffle=, subset=, weights= and repeats= of the split, and the buckets of its crop"
"""What the checksum ``order`` of a feed is of."""
_LOOK = 10  # batches: fewer of a pass are a look at it
_EPOCHS = 3
_CAUSES = {
    "batches": "drop_last= and crop",
    "data": "shards, from a cache on all ranks or on none, in the same order, with the same labels",
    "order": ORDER,
    "samples": "shards and subset=, or samples= of Streaming",
    "global_batch": "batch_size= or global_batch_size=",
    "seed": "seed=",
    "shapes": "crop",
    "sources": "sources of the Mixture, in the same order",
    "mixture": "weights= or repeat=, stopping= and batches= of the Mixture",
}
"""What the facts of a loader depend on, by their names."""


@dataclass(frozen=True)
class DataRank:
    """The data-parallel rank of this process: which share of every batch it reads.

    Processes of one data-parallel rank read the same samples. These are the peers of tensor, context and
    pipeline parallelism.

    Args:
        rank: 0 to ``world - 1``.
        world: Number of shares.
        origin: ``"processes"`` if each process of ``torch.distributed`` is a rank; ``"mesh"``; or
            ``"given"`` by numbers.
        is_first: Whether this process issues the warnings that all processes would issue.
        is_everywhere: Whether all processes of ``torch.distributed`` have such a rank: False for a mesh of
            some of them, whose loaders the others do not create.
        process: Number of the process that made it, of the operating system.
        processes: Processes of ``torch.distributed`` at that time.
    """

    rank: int = 0
    world: int = 1
    origin: Literal["processes", "mesh", "given"] = "processes"
    is_first: bool = True
    is_everywhere: bool = True
    process: int = field(default_factory=os.getpid, compare=False)
    processes: int = field(default_factory=lambda: process_rank()[1], compare=False)

    def check_processes(self) -> None:
        """Compare this rank, if it was read from ``torch.distributed``, with what that is now.

        Called when an iteration begins. Warns if a launcher has started several processes that are no group.

        Raises:
            ValueError: If ``torch.distributed`` was initialised after this rank was read from it, or its
                group was destroyed; or if a worker process of a ``DataLoader`` would read what the others
                read too.
        """
        worker = get_worker_info()
        is_elsewhere = self.process != os.getpid()
        if worker is not None and (is_elsewhere or (worker.num_workers > 1 and self.origin != "given")):
            raise ValueError(
                f"num_workers={worker.num_workers} of the DataLoader must be 0: each of its processes would "
                "read all batches of this loader, and always those of the same epoch. The loader has workers "
                "of its own, see workers= and threads= of tarpeg.Loader. One that a worker process makes "
                "needs rank= and world=: 0 and 1 for all of its samples"
            )
        if self.origin == "given":
            return
        process, processes = process_rank()
        if self.world > 1 and processes == 1 < self.processes:
            raise ValueError(
                f"this loader is of rank {self.rank} of {self.world}, and the process group was "
                "destroyed: it would read one share of the samples. Create another loader, which reads all."
            )
        if self.origin == "mesh":
            return
        if processes > 1 and (process, processes) != (self.rank, self.world):
            raise ValueError(
                f"this loader is of rank {self.rank} of {self.world}, but the process is rank {process} of "
                f"{processes}. Create the loader after torch.distributed is initialised: after "
                "init_process_group(), or Fabric.launch(); with Lightning's Trainer, in train_dataloader(), "
                "or give it a ShardDataModule."
            )
        if self.world == 1:
            warn_if_alone(
                "Call torch.distributed.init_process_group() before the loader is created; Loader(rank=0, "
                "world=1) is for a process that works alone."
            )

    def compare(self, name: str, facts: Mapping[str, Any]) -> Positions | None:
        """Compare ``facts``, on which the batches depend, over all processes of ``torch.distributed``.

        A collective: every process has to call it. Different counts of batches deadlock or corrupt the
        collectives of a training; other facts give tensor-parallel peers different samples.

        Args:
            name: Of the split, for the message.
            facts: Strings and numbers, equal on all processes.

        Returns:
            What compares later where each of them begins; None without other processes.

        Raises:
            ShardError: If the facts differ, or if a data-parallel rank is missing.
        """
        process, processes = process_rank()
        if processes == 1:
            return None
        found: list[Any] = [None] * processes
        own = self.rank, self.world, dict(facts), uuid.uuid4().hex
        try:
            alone = "one that iterates alone gives rank=0 and world=1"
            with waiting_for(f"all {processes} processes to make the loader of the {name} split ({alone})"):
                torch.distributed.all_gather_object(found, own)
        except RuntimeError as error:
            raise ShardError(
                f"the {processes} processes could not compare the {name} split ({error}): make its loader on "
                "all of them, or with rank=0 and world=1 for a process that iterates alone"
            ) from error
        for other, each in enumerate(found):
            if not isinstance(each, tuple) or len(each) != 4:
                raise ShardError(
                    f"process {other} compares something else while this one makes the loader of the {name} "
                    "split: make the same loaders in the same order on all processes"
                )
        ranks = [rank for rank, *_ in found]
        worlds = {world for _, world, *_ in found}
        if worlds != {self.world} or {*ranks} != {*range(self.world)}:
            raise ShardError(
                f"the {name} split has the data-parallel ranks {ranks} of {sorted(worlds)} on the "
                f"{processes} processes: every rank below the number of ranks must be there. Check rank=, "
                "world= or mesh= of the loader."
            )
        first = found[0][2]
        for other, (_, _, theirs, _) in enumerate(found):
            if theirs != first:
                names = [key for key in {**first, **theirs} if first.get(key) != theirs.get(key)]
                here, there = ({key: each.get(key) for key in names} for each in (first, theirs))
                raise ShardError(
                    f"the {name} split is {here} on rank 0 but {there} on rank {other}. "
                    f"Give every rank the same {_causes(names)}."
                )
        is_first = ranks.index(self.rank) == process
        return Positions(name, process, processes, f"tarpeg/{found[0][3]}", is_first)


def _causes(facts: Sequence[str]) -> str:
    """Return what makes facts differ, as a text: the arguments, of which a checksum alone is compared.

    Numbers of batches and the checksum of a mixture follow from other facts, and are left out beside these.
    """
    others = [name for name in facts if name not in ("batches", "mixture")]
    found: dict[str, None] = {}
    for name in others or facts:
        kind, _, source = name.partition(" of ")
        found[_CAUSES.get(kind, kind) + f" of the source {source!r}" * bool(source)] = None
    return "; ".join(found)


class Positions:
    """Compares where the processes of ``torch.distributed`` begin to iterate: with or without a state.

    Each of them writes what it does into the store of the process group, and reads what others wrote before:
    the last one finds a difference. Nothing waits for another process, which may never iterate. A process
    that takes a single batch, for a look at it, may load a state afterwards: only a second batch counts.

    A process that has taken a look alone is an epoch ahead from then on: the epochs that it reads are others
    than those of the other processes, one by one. After a whole epoch alone they are the same ones, at
    another time: when it has read half of an epoch, others are in the one before, again and again. A process
    that is faster, and waits for no other, may be so far ahead for some time. Those that never iterate do not
    count: another one may send them its batches.

    Args:
        name: Of the split, for messages.
        process: Number of this process.
        processes: Number of all.
        key: Of the loader in the store, equal on all processes.
        is_first: Whether this process is the first of its rank, which warns of what its peers see too.
    """

    def __init__(self, name: str, process: int, processes: int, key: str, is_first: bool = True) -> None:
        self.is_first = is_first
        self._name, self._process, self._processes, self._key = name, process, processes, key
        self._epochs = set[int]()  # that this process has begun
        self._pass = (-1, 0)  # the epoch that was set last, and how many were begun since
        self._before: int | None = None  # the epoch of the pass before
        self._ahead = 0  # epochs in a row in which others were in the one before
        self._has_warned = False
        self._owner = os.getpid()  # a child of a fork may not use the connection of its parent
        self._loaded = 0  # states, those that replaced another before an iteration not counted
        self._has_begun = False  # since the last of them

    def load(self, epoch: int, batch: int) -> None:
        """Compare that this process has loaded a state; one more before it iterates replaces that."""
        if self._loaded and not self._has_begun:
            return
        if not self._has_begun:
            self._note("skipped", "begun", f"goes on from batch {batch} of epoch {epoch}, with a state")
        self._loaded, self._has_begun = self._loaded + 1, False
        self._epochs, self._pass, self._before, self._ahead = set(), (-1, 0), None, 0

    def go_on(self, epoch: int, batch: int) -> None:
        """Compare where this process began, at its second batch, for the first time since a state.

        Raises:
            ShardError: If another process has loaded a state in place of it, or goes on from another batch.
        """
        if self._has_begun:
            return
        self._has_begun = True
        place = f"batch {batch} of epoch {epoch}"
        self._note(
            "begun", "skipped", f"begins with {place}, {'with' if self._loaded else 'without'} a state"
        )
        if self._loaded:
            self._agree(f"process {self._process} goes on from ", place)

    def check(self, epoch: int, read: int, length: int, *, is_set: bool) -> None:
        """Compare the epochs of a training, of which this process has read so many batches.

        Warns if it is not the epoch that others read as their first, second, ... since one that was set, and
        if this process is an epoch ahead of others for several epochs.

        Args:
            epoch: The present one.
            read: Batches of it.
            length: Of the epoch, or of what is left of it.
            is_set: Whether ``set_epoch`` was called for it.
        """
        last = length - 1  # not the end, when the process with the store may be gone
        if read == 0 and is_set:  # also for a look
            self._pass = epoch, 0
        if read == min(_LOOK, last):
            self._begin(epoch)
        if read == max(2 * _LOOK, last // 2) < last:
            self._compare(epoch)
        if read == last:
            self._count(f"end/{epoch}", 1)
            self._before = epoch

    def _begin(self, epoch: int) -> None:
        """Count this process among those that have begun an epoch."""
        store, own, first = self._store(), str(epoch), b""
        if store is None:
            return
        since, count = self._pass
        self._pass = since, count + 1
        with contextlib.suppress(RuntimeError):
            first = store.compare_set(f"pass/{since}/{count}", "", own)
        if epoch not in self._epochs:
            self._count(f"epoch/{epoch}", 1)
        if not self._epochs:
            self._count("iterate", 1)
        self._epochs.add(epoch)
        if first not in (b"", own.encode()):
            self._warn_apart(f"reads epoch {epoch}, and another one epoch {first.decode()}")

    def _compare(self, epoch: int) -> None:
        """Compare how many processes have begun an epoch, after half of it, and ended the one before."""
        if self._before is None or epoch not in self._epochs:
            return
        processes = self._count("iterate", 0)  # first: another may begin now
        begun, ended = self._count(f"epoch/{epoch}", 0), self._count(f"end/{self._before}", 0)
        # A count of 0 is that of a new group of processes.
        self._ahead = self._ahead + 1 if 0 < begun < processes and 0 < ended < processes else 0
        if self._ahead == _EPOCHS:
            self._warn_apart(
                f"has read half of epoch {epoch}, which {begun} of {processes} processes have begun, and was "
                f"as far ahead in the {_EPOCHS - 1} epochs before"
            )

    def _count(self, name: str, more: int) -> int:
        """Return a count of the group, after more was added; 0 without a group."""
        store = self._store()
        with contextlib.suppress(RuntimeError):
            return 0 if store is None else int(store.add(name, more))
        return 0

    def _warn_apart(self, what: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warn(
            f"the {self._name} split: process {self._process} {what}. If they train in step, some samples "
            "come twice, and others not: one of them has taken batches alone, which was an epoch, too. Make "
            "a loader of its own for it, with rank=0 and world=1, or set the epoch on all of them: "
            "loader.sampler.set_epoch(epoch)"
        )

    def _note(self, done: str, opposite: str, what: str) -> None:
        store, mine, theirs = self._store(), f"process {self._process} {what}", b""
        if store is None:
            return
        with contextlib.suppress(RuntimeError):  # the process that has the store has ended, and shows why
            store.set(f"{done}/text", mine)
            store.add(done, 1)
            if store.add(opposite, 0):
                theirs = store.get(f"{opposite}/text")
        if theirs:
            raise self._error(theirs.decode(), mine)

    def _agree(self, prefix: str, place: str) -> None:
        store, first = self._store(), b""
        if store is None:
            return
        with contextlib.suppress(RuntimeError):
            first = store.compare_set("place", "", prefix + place)
        if first and not first.decode().endswith(f" {place}"):
            raise self._error(first.decode(), prefix + place)

    def _error(self, theirs: str, mine: str) -> ShardError:
        return ShardError(
            f"the {self._name} split: {theirs}, but {mine}. Load the same state on every process, before any "
            "of them iterates over the loader, or on none; for a process that iterates alone, make a loader "
            "with rank=0 and world=1."
        )

    def _store(self) -> Any:
        """Part of the group's store for this number of states; None without a group, and in a fork."""
        if not _is_initialised() or os.getpid() != self._owner:
            return None
        # torch has no public name for it.
        from torch.distributed import distributed_c10d

        find = getattr(distributed_c10d, "_get_default_store", None)
        store = None if find is None else find()
        return store and distributed_c10d.PrefixStore(f"{self._key}/{self._loaded}", store)


def process_rank() -> tuple[int, int]:
    """Return rank and number of the processes of ``torch.distributed``; (0, 1) without it."""
    if _is_initialised():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def _is_initialised() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def warn_if_alone(remedy: str) -> None:
    """Warn if a launcher has started several processes that are no group of ``torch.distributed``."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdecimal() and int(started) > 1 and not _is_initialised():
        warn(
            f"WORLD_SIZE={started}, but torch.distributed is not initialised: each process reads all "
            f"samples, and trains a network of its own. {remedy}"
        )


def data_rank(rank: int | None = None, world: int | None = None, mesh: Mesh = None) -> DataRank:
    """Return the data-parallel rank that a loader was given.

    Args:
        rank: 0 to ``world - 1``; with ``world``.
        world: Number of data-parallel ranks; with ``rank``.
        mesh: Instead of both, a ``DeviceMesh`` of one dimension, ``mesh["dp"]``, or a tuple of a
            ``DeviceMesh`` and the names of its data-parallel dimensions, ``(mesh, "dp")``.

    Without any of them, each process of ``torch.distributed`` is a rank.

    Raises:
        ValueError: For ``rank`` without ``world``, for a rank out of range, and for a mesh of several
            dimensions without names.
    """
    process, processes = process_rank()
    if mesh is not None:
        if rank is not None or world is not None:
            raise ValueError(f"rank={rank!r} and world={world!r} are those of mesh=: leave them out")
        return DataRank(*_rank_in_mesh(mesh), "mesh", process == 0, _processes_of(mesh) >= processes)
    if rank is None and world is None:
        return DataRank(process, processes, "processes", process == 0)
    for name, value in (("rank", rank), ("world", world)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ValueError(f"{name}={value!r} must be an integer: give both rank= and world=, or neither")
    assert rank is not None
    assert world is not None
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank} must be in 0..{world - 1}: there are world={world} ranks")
    is_first = process == 0 if processes > 1 else rank == 0
    return DataRank(int(rank), int(world), "given", is_first)


def rank_of_strategy(strategy: Any) -> tuple[int, int]:
    """Return the data-parallel rank and the number of ranks of a Lightning strategy."""
    found = getattr(strategy, "distributed_sampler_kwargs", None)
    if found is None:  # of one device
        return 0, 1
    return found["rank"], found["num_replicas"]


def _processes_of(given: Mesh) -> int:
    """Return the number of processes of a mesh, or of the mesh that it is a part of."""
    mesh: Any = given[0] if isinstance(given, tuple) else given
    if hasattr(mesh, "_get_root_mesh"):  # torch has no public name for it
        mesh = mesh._get_root_mesh()
    return math.prod(mesh.size(dimension) for dimension in range(mesh.ndim))


def _rank_in_mesh(given: Mesh) -> tuple[int, int]:
    """Return rank and number of ranks in the dimensions of a mesh; the last dimension counts fastest."""
    mesh, *names = given if isinstance(given, tuple) else (given,)
    if not all(hasattr(mesh, name) for name in ("ndim", "size", "get_coordinate", "mesh_dim_names")):
        raise ValueError(
            f"mesh={given!r} must be a DeviceMesh of one dimension, or a tuple of a DeviceMesh and the name "
            'of its data-parallel dimension, such as (mesh, "dp")'
        )
    known = tuple(mesh.mesh_dim_names or ())
    if not known and mesh.ndim != 1:
        raise ValueError(
            'mesh= has dimensions without names: make it with names, such as mesh_dim_names=("dp", "tp") of '
            'init_device_mesh(), and give mesh=(mesh, "dp")'
        )
    if not names and mesh.ndim != 1:
        raise ValueError(
            f"mesh= has the dimensions {known}: name the one whose processes get different samples, such as "
            f"mesh=(mesh, {known[0]!r}), or several, such as mesh=(mesh, 'dp_replicate', 'dp_shard')"
        )
    if wrong := [name for name in names if name not in known]:
        raise ValueError(
            f"mesh=(mesh, {wrong[0]!r}): the dimensions of the mesh are {known}; several data-parallel ones "
            "follow each other, such as mesh=(mesh, 'dp_replicate', 'dp_shard'). A flattened one is a mesh "
            f"by itself: mesh=mesh[{wrong[0]!r}]"
        )
    place = mesh.get_coordinate()
    if place is None:
        raise ValueError(
            "mesh= does not contain this process: create the loader on the processes in the mesh"
        )
    rank, world = 0, 1
    for dimension in [known.index(name) for name in names] or [0]:
        # Not mesh.get_local_rank(): groups of processes are sorted by their numbers, a mesh need not be.
        size = mesh.size(dimension)
        rank = rank * size + place[dimension]
        world *= size
    return rank, world

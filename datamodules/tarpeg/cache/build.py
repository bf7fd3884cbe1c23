"""What a cache build leaves on disk while it lasts: one record a finished shard, in DEST/.building.

A finished cache has a manifest and no such folder. A build turns the manifest into records first, and the
first job that replaces a shard removes it: there is a manifest only where every shard is what it says.
"""
# MERGED: Building the offline cache: plan the shards, run a job for each, and write the manifest at the end.

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from .. import __version__, processes
from ..errors import CacheError
from ..files import write_json
from ..machine import usable_cores
from ..ops import library
from ..shards.folder import Folder
from ..shards.manifest import BUILDING, MANIFEST, Manifest, Quarantined, ShardEntry, read_manifest, summed
from . import job, sources
from .codecs import Codec, Tiled
from .job import BUILD, COMMIT_LOCK, Job, Record, lock, remove_temporaries
from .plan import FolderPlan, Layout, OneToOne, Plan, Recut, indexes
from .sources import Input, Shard, Source

BUILD_LOCK = ".build.lock"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other builders waiting. A lock ends with its process, however that ends."""
    with (folder / BUILD_LOCK).open("ab") as probe:
        lock(probe)
    waiting = FileLock(folder / BUILD_LOCK)
    try:
        waiting.acquire(timeout=1)
    except Timeout:
        warnings.warn(f"another builder is at work in {folder}: waiting for it", UserWarning, stacklevel=4)
        waiting.acquire()
    try:
        yield
    finally:
        waiting.release()


def unchanged(folder: Path, fingerprint: str) -> Manifest | None:
    """Give the manifest where the folder holds just that cache, all shards in place; otherwise None."""
    manifest = _manifest(folder)
    if manifest is None or manifest.fingerprint != fingerprint or (folder / BUILDING).exists():
        return None
    places = [(folder / entry.name, entry.bytes) for entry in manifest.shards]
    return manifest if all(_size(p) == n and p.with_suffix(".idx").is_file() for p, n in places) else None


def begin(folder: Path, fingerprint: str) -> dict[str, Record]:
    """Take the folder over for a build, clear what dead ones left; give the records of whole shards by name.

    Raises CacheError where there are shards that no builder of ours wrote.
    """
    with FileLock(folder / COMMIT_LOCK):
        building = folder / BUILDING
        manifest = _manifest(folder)
        records = _records(building) if manifest is None else _from_manifest(folder, manifest)
        strangers = sorted(path.name for path in folder.glob("*.tar") if path.stem not in records)
        if strangers:
            raise CacheError(
                f"{folder} holds shards that are no part of a cache, such as {strangers[0]}: choose another "
                "dest=, or move them away"
            )
        building.mkdir(exist_ok=True)
        remove_temporaries(folder)
        if manifest is not None:
            for record in records.values():
                write_json(building / f"{record.name}.json", asdict(record))
        write_json(building / BUILD, {"fingerprint": fingerprint})
    return {name: record for name, record in records.items() if _is_in_place(folder, record)}


def withdraw(folder: Path) -> None:
    """End the build without a cache: jobs still under way find that it is theirs no more, and stop."""
    with FileLock(folder / COMMIT_LOCK):
        (folder / BUILDING / BUILD).unlink(missing_ok=True)


def finish(folder: Path, manifest: Manifest) -> None:
    """Remove shards that are no part of the cache any more, and write the manifest."""
    with FileLock(folder / COMMIT_LOCK):
        # Aside first: a disk that is full then takes nothing that was there.
        aside = folder / BUILDING / "finished"
        aside.mkdir(exist_ok=True)
        manifest.write(aside)
        (folder / MANIFEST).unlink(missing_ok=True)
        for name in _records(folder / BUILDING).keys() - {Path(entry.name).stem for entry in manifest.shards}:
            for kind in ("tar", "idx"):
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
        (aside / MANIFEST).replace(folder / MANIFEST)
        shutil.rmtree(folder / BUILDING)


def entry_of(record: Record) -> ShardEntry:
    """Give a record as the manifest has it."""
    values = {name.name: getattr(record, name.name) for name in fields(ShardEntry)}
    return ShardEntry(**{**values, "name": f"{record.name}.tar"})


def _manifest(folder: Path) -> Manifest | None:
    try:
        return read_manifest(folder)
    except CacheError as error:
        raise CacheError(f"{error} (To build there all the same, delete the folder {folder}.)") from error


def _from_manifest(folder: Path, manifest: Manifest) -> dict[str, Record]:
    bad: dict[str, list[tuple[str, str, str]]] = {}
    for entry in manifest.quarantine:
        bad.setdefault(entry.part, []).append((entry.shard, entry.key, entry.reason))
    records = {}
    for shard in manifest.shards:
        name, path = Path(shard.name).stem, folder / shard.name
        mtime_ns = path.stat().st_mtime_ns if _size(path) == shard.bytes else -1
        values = {**asdict(shard), "name": name, "quarantine": bad.get(shard.name, []), "mtime_ns": mtime_ns}
        records[name] = Record(**values)
    return records


def _records(building: Path) -> dict[str, Record]:
    records = {}
    for path in sorted(building.glob("*.json")):
        try:
            record = Record(**json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise CacheError(f"{path} is damaged: delete the folder {building.parent}.") from error
        records[record.name] = record
    return records


def _is_in_place(folder: Path, record: Record) -> bool:
    if not record.samples:
        return True
    try:
        found = (folder / f"{record.name}.tar").stat()
    except FileNotFoundError:
        return False
    is_same = (found.st_size, found.st_mtime_ns) == (record.bytes, record.mtime_ns)
    return is_same and (folder / f"{record.name}.idx").is_file()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def quarantine_of(record: Record) -> list[Quarantined]:
    """Give what a shard lost as the manifest has it."""
    return [Quarantined(*entry, f"{record.name}.tar") for entry in record.quarantine]


_FORMAT = 1  # raise it when the same source and parameters give other shards
_SHOWN = 5  # reasons in an error


class Progress(NamedTuple):
    """How far a build is. kept: shards that were there already; bytes: of the source."""

    shards: int
    shards_total: int
    kept: int
    samples: int
    bytes: int
    bytes_total: int
    quarantined: int


@dataclass(frozen=True)
class CacheReport:
    """What a cache holds and what this run did for it.

    shards, samples, bytes: of the cache; source_bytes: of the same samples before; built: shards written by
    this run. tiles: images by width of tile in pixels; untiled: images by reason; quarantine: what was left
    out. example: the job of the first shard, to compare the cache with its source; None where the source
    would have to be indexed for it.
    """

    dest: Path
    shards: int
    built: int
    samples: int
    source_bytes: int
    bytes: int
    tiles: dict[int, int]
    untiled: dict[str, int]
    quarantine: tuple[Quarantined, ...]
    seconds: float
    example: Job | None = field(default=None, repr=False)


def build_cache(
    source: Source,
    dest: str | os.PathLike[str],
    codec: Codec | None = None,
    executor: Executor | int | None = None,
    *,
    layout: Layout | None = None,
    max_bad: float = 0.01,
    progress: Callable[[Progress], object] | None = None,
) -> CacheReport:
    """Rewrite a source into a cache: local shards, with an index each and a manifest, quick to decode.

    source: shards, as a folder, paths, globs, brace patterns or URLs (fsspec's), or a folder of images with
    one sub-directory per class, or with these in ``train`` and ``val``, which become shards ``train-*`` and
    ``val-*``. codec: ``Tiled()`` unless told. executor: where jobs run, one a shard; or a
    number of local processes (0: this one), by default one a core. max_bad: the share of samples, 0 to 1,
    that may be undecodable; they are left out and listed. progress: called after each shard.

    The shards are the same bytes however often the build was killed and whatever ran it; a second run does
    only what is missing or changed. A second builder on the same folder waits for the first.

    Raises:
        ValueError: for an argument out of range.
        ShardError: where the source cannot be read.
        CacheError: where too much of it is undecodable, or the cache cannot be written.
    """
    started = time.monotonic()
    codec = Tiled() if codec is None else codec
    layout = Layout() if layout is None else layout
    _check_codec(codec)
    if not 0 <= max_bad <= 1:
        raise ValueError(f"max_bad={max_bad!r} must be a share, from 0 to 1")
    if isinstance(executor, int) and executor < 0:
        raise ValueError(f"executor={executor!r} must be an Executor, or a number of processes, 0 or more")
    folder = Path(dest).expanduser().absolute()
    listing = sources.find(source)
    _check_apart(listing, folder)
    library.load()  # builds the operators where that has not happened: once, not in every worker
    builder = _Builder(folder, listing, codec, layout, max_bad, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with alone(folder):
            manifest = builder.run(executor)
    except OSError as error:
        raise CacheError(f"cannot write to {folder}: {error}. Whatever is finished is kept.") from error
    return CacheReport(
        dest=folder,
        shards=len(manifest.shards),
        built=builder.built,
        samples=manifest.samples,
        source_bytes=sum(entry.source_bytes for entry in manifest.shards),
        bytes=manifest.bytes,
        tiles={int(width): count for width, count in manifest.tiles.items()},
        untiled=manifest.untiled,
        quarantine=tuple(manifest.quarantine),
        seconds=time.monotonic() - started,
        example=builder.example,
    )


@dataclass
class _Builder:
    folder: Path
    listing: list[Shard] | Folder
    codec: Codec
    layout: Layout
    max_bad: float
    progress: Callable[[Progress], object] | None
    built: int = 0
    example: Job | None = None
    names: list[str] = field(default_factory=list)  # of all shards, in order
    records: dict[str, Record] = field(default_factory=dict)
    samples: int = 0
    read: int = 0  # bytes of the source
    bad: list[Quarantined] = field(default_factory=list)

    def run(self, executor: Executor | int | None) -> Manifest:
        """Bring the folder up to date, doing what is missing."""
        plan, identity = self._plan()
        fingerprint = job.digest([_FORMAT, identity, job.describe(self.codec), asdict(self.layout)])
        manifest = unchanged(self.folder, fingerprint)
        if manifest is not None:
            self.samples, self.bad = manifest.samples, list(manifest.quarantine)
            self._check_bad(manifest.samples + len(manifest.quarantine), self.max_bad)
            self.example = None if plan is None else self._job(*next(plan.inputs()), fingerprint)
            return manifest
        known = begin(self.folder, fingerprint)
        stop = partial(withdraw, self.folder)
        with processes.pool(executor, plan.shards if plan else usable_cores()) as pool:
            if plan is None:
                plan = Recut(self._shards(), indexes(self._shards(), self.folder, pool, stop), self.layout)
            self.bad += plan.left_out
            calls = ((job,) for job in self._missing(plan, known, fingerprint))
            for record in processes.results(pool, job.run, calls, stop):
                self.built += 1
                self._add(plan, record)
        self._check_bad(self.samples + len(self.bad), self.max_bad)
        manifest = self._manifest(fingerprint)
        finish(self.folder, manifest)
        return manifest

    def _plan(self) -> tuple[Plan | None, list[object]]:
        """Plan the shards, if that takes no indexing; and tell what the source is."""
        if isinstance(self.listing, Folder):
            plan = FolderPlan(self.listing, self.layout)
            return plan, [source.identity() for _, source in plan.inputs()]
        is_recut = self.layout.is_cut or self.layout.shuffle
        return None if is_recut else OneToOne(self.listing), [shard.identity for shard in self.listing]

    def _shards(self) -> list[Shard]:
        assert isinstance(self.listing, list)
        return self.listing

    def _job(self, name: str, source: Input, fingerprint: str) -> Job:
        return Job(str(self.folder), name, source, self.codec, fingerprint)

    def _missing(self, plan: Plan, known: dict[str, Record], fingerprint: str) -> Iterator[Job]:
        for name, source in plan.inputs():
            job = self._job(name, source, fingerprint)
            self.example = self.example or job
            self.names.append(name)
            record = known.get(name)
            if record is not None and record.fingerprint == job.fingerprint:
                self._add(plan, record)
            else:
                yield job

    def _add(self, plan: Plan, record: Record) -> None:
        self.records[record.name] = record
        self.samples += record.samples
        self.read += record.source_bytes
        self.bad += quarantine_of(record)
        # How many samples there are is only guessed so far: not before twice the limit.
        seen, share = self.samples + len(self.bad), min(1.0, self.read / max(plan.source_bytes, 1))
        self._check_bad(seen / max(share, 1e-9), 2 * self.max_bad)
        if self.progress is not None:
            kept, total = len(self.records) - self.built, max(plan.source_bytes, self.read)
            counts = (len(self.records), plan.shards, kept, self.samples, self.read, total, len(self.bad))
            self.progress(Progress(*counts))

    def _check_bad(self, samples: float, limit: float) -> None:
        if len(self.bad) <= limit * samples:
            return
        shown = [f"shard {bad.shard}, key {bad.key!r}: {bad.reason}" for bad in self.bad[:_SHOWN]]
        more = f"; and {len(self.bad) - _SHOWN} more" * (len(self.bad) > _SHOWN)
        seen = self.samples + len(self.bad)
        enough = next(share for share in (n / 100 for n in range(1, 101)) if len(self.bad) <= share * seen)
        remedy = f", or give max_bad={enough}" if self.samples else ""
        raise CacheError(
            f"{len(self.bad)} of {seen} samples cannot be used, more than "
            f"max_bad={self.max_bad} allows: {'; '.join(shown)}{more}. Repair the source{remedy}; "
            "what is finished is kept."
        )

    def _manifest(self, fingerprint: str) -> Manifest:
        if not self.samples:
            raise CacheError("the source has no sample that can be decoded: there is nothing to cache.")
        records = [self.records[name] for name in self.names]
        shards = [entry_of(record) for record in records if record.samples]
        quarantine = [bad for bad in self.bad if not bad.part]
        for record in records:
            quarantine += quarantine_of(record)
        source: list[object] = (
            [{"folder": self.listing.root, "classes": next(iter(self.listing.parts().values())).classes()}]
            if isinstance(self.listing, Folder)
            else [shard.name for shard in self.listing]
        )
        return Manifest(
            tarpeg=__version__,
            fingerprint=fingerprint,
            source=source,
            codec=job.describe(self.codec),
            layout=asdict(self.layout),
            samples=self.samples,
            bytes=sum(shard.bytes for shard in shards),
            shards=shards,
            quarantine=quarantine,
            tiles=summed(shard.tiles for shard in shards),
            untiled=summed(shard.untiled for shard in shards),
        )


def _check_codec(codec: object) -> None:
    if not is_dataclass(codec) or isinstance(codec, type) or not hasattr(codec, "encode"):
        raise ValueError(f"codec={codec!r} must be Tiled(...), Resized(...), Raw(...) or such a dataclass")


def _check_apart(listing: list[Shard] | Folder, folder: Path) -> None:
    """Refuse a cache inside its own source, which it would become a part of."""
    target = folder.resolve()
    if isinstance(listing, Folder):
        inside = Path(listing.root).resolve() in (target, *target.parents)
    else:
        inside = any(not s.is_remote and Path(s.place).resolve().parent == target for s in listing)
    if inside:
        raise ValueError(f"dest={str(folder)!r} is where the source lies: choose another folder")

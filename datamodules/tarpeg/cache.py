"""Building the offline cache: plan the shards, run a job for each, and write the manifest at the end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import __version__, _load, cachejob, cachepool, cachestate, sources
from .cachejob import Job, Record
from .cacheplan import FolderPlan, Layout, OneToOne, Plan, Recut, indexes
from .codecs import Codec, Tiled
from .errors import CacheError
from .folders import Folder
from .manifest import Manifest, Quarantined, summed
from .sources import Input, Shard, Source
from .surroundings import usable_cores

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
    _load.load()  # builds the operators where that has not happened: once, not in every worker
    builder = _Builder(folder, listing, codec, layout, max_bad, progress)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with cachestate.alone(folder):
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
        fingerprint = cachejob.digest([_FORMAT, identity, cachejob.describe(self.codec), asdict(self.layout)])
        manifest = cachestate.unchanged(self.folder, fingerprint)
        if manifest is not None:
            self.samples, self.bad = manifest.samples, list(manifest.quarantine)
            self._check_bad(manifest.samples + len(manifest.quarantine), self.max_bad)
            self.example = None if plan is None else self._job(*next(plan.inputs()), fingerprint)
            return manifest
        known = cachestate.begin(self.folder, fingerprint)
        withdraw = partial(cachestate.withdraw, self.folder)
        with cachepool.pool(executor, plan.shards if plan else usable_cores()) as pool:
            if plan is None:
                plan = Recut(
                    self._shards(), indexes(self._shards(), self.folder, pool, withdraw), self.layout
                )
            self.bad += plan.left_out
            calls = ((job,) for job in self._missing(plan, known, fingerprint))
            for record in cachepool.results(pool, cachejob.run, calls, withdraw):
                self.built += 1
                self._add(plan, record)
        self._check_bad(self.samples + len(self.bad), self.max_bad)
        manifest = self._manifest(fingerprint)
        cachestate.finish(self.folder, manifest)
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
        self.bad += cachestate.quarantine_of(record)
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
        shards = [cachestate.entry_of(record) for record in records if record.samples]
        quarantine = [bad for bad in self.bad if not bad.part]
        for record in records:
            quarantine += cachestate.quarantine_of(record)
        source: list[object] = (
            [{"folder": self.listing.root, "classes": next(iter(self.listing.parts().values())).classes()}]
            if isinstance(self.listing, Folder)
            else [shard.name for shard in self.listing]
        )
        return Manifest(
            tarpeg=__version__,
            fingerprint=fingerprint,
            source=source,
            codec=cachejob.describe(self.codec),
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

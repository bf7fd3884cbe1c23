"""Building a cache: assign samples to shards, run one job per shard, write the manifest at the end.

A finished cache has a manifest. While it is built, DEST/.building holds one NAME.json per finished shard.
A build turns an existing manifest into such results, and the first job that replaces a shard removes it:
there is a manifest only if every shard is as it describes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from .. import __version__
from ..errors import CacheError, ShardError, allowed_bad, explains_arguments, warn
from ..files import read_regular, write_json
from ..machine import usable_cores
from ..ops import library
from ..processes import completed, open_executor
from ..remedies import Message, Setting
from ..shards.classes import classes_beside, stored_classes
from ..shards.folder import Folder
from ..shards.manifest import (
    BUILDING,
    MANIFEST,
    CodecEntry,
    Finding,
    Manifest,
    Quarantined,
    ShardEntry,
    read_manifest,
    summed,
)
from ..shards.paths import resolved
from ..shards.urls import is_url, local_folder
from . import job
from .codecs import Codec, Tiled
from .job import COMMIT_LOCK, CURRENT_BUILD, ShardJob, ShardResult
from .layout import Assignment, Layout, assign_copies, assign_files, assign_samples, index_shards
from .masks import names_of
from .sources import ShardInput, Source, SourceShard, count_left_out, list_source
from .targets import BROKEN_TARGET, Problem, broken_targets

_BUILD_LOCK, _SOURCE = ".build.lock", "build.source"
_FORMAT = 1  # to be raised if the same source and parameters give other shards
_OPTIONS = ("split", "seed", "val_share")  # of a Folder, which identify it together with its path
_BYTES_PER_PROCESS = 32 << 20  # takes about as long as the start of a process, which imports torch
_SHOWN = 5  # reasons in an error


class Progress(NamedTuple):
    """Progress of a build.

    Attributes:
        shards: Shards that are complete.
        shards_total: Shards of the cache.
        kept: Shards that existed already.
        samples: Samples in the complete shards.
        bytes: Bytes of the source that were read.
        bytes_total: Bytes of the source.
        quarantined: Samples that were left out.
    """

    shards: int
    shards_total: int
    kept: int
    samples: int
    bytes: int
    bytes_total: int
    quarantined: int


@dataclass(frozen=True)
class CacheReport:
    """Contents of a cache, and what this build added.

    Attributes:
        dest: Folder of the cache.
        shards: Number of shards.
        built: Shards written by this build.
        samples: Number of samples.
        source_bytes: Bytes of these samples in the source.
        bytes: Bytes of the shards.
        tiles: Number of images by width of tile in pixels; with ``Packed`` those that are packed.
        untiled: Number of images without tiles (with ``Packed``: that are not packed), by reason.
        quarantine: Samples that were left out.
        seconds: Duration of the build.
        example: Job of the first shard, to compare the cache with its source; None if the source would have
            to be indexed for it.
        left_out: Files of a folder that are not in the cache, counted by kind.
        findings: Samples that may be a mistake of the source, by kind, such as "samples without a label":
            their number, and source shard, key and content of the first.
        classes: Names of the classes by label; None if the source has none.
        converted: Files that became JPEGs, by format, in the shards that this build wrote.
        is_split: False for a folder without ``train`` and ``val``.
        codec: Name of the codec's class.
        broken_targets: With ``targets=``, those that training replaces, with the image; each has ``shard``,
            that of the cache, ``key`` and ``what``. ``findings`` has their number and the first.

    Example:
        >>> report = tarpeg.build_cache(shards, tmp, executor=0)
        >>> report.built, report.samples, report.codec
        (2, 32, 'Tiled')
        >>> tarpeg.build_cache(shards, tmp, executor=0).built  # nothing has changed
        0
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
    example: ShardJob | None = field(default=None, repr=False)
    left_out: dict[str, int] = field(default_factory=dict)
    findings: dict[str, Finding] = field(default_factory=dict)
    classes: list[str] | None = None
    converted: dict[str, int] = field(default_factory=dict)
    is_split: bool = True
    codec: str = "Tiled"
    broken_targets: tuple[Problem, ...] = ()


@explains_arguments(
    {"workers": "give executor=N, a number of processes", "out": "did you mean 'dest'?"}
    | {part.name: f"give layout=Layout({part.name}=...)" for part in fields(Layout)}
)
def build_cache(
    source: Source,
    dest: str | os.PathLike[str],
    codec: Codec | None = None,
    executor: Executor | int | None = None,
    *,
    layout: Layout | None = None,
    masks: str | Sequence[str] | None = None,
    targets: Any = None,
    max_bad: float = 0.01,
    replace: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> CacheReport:
    """Rewrite a source into a cache: local shards that decode quickly, their indexes, and a manifest.

    The shards are the same bytes for any executor and after any number of killed builds. A second build
    writes only missing or changed shards, and those whose index is damaged. It does not read tars that have
    their size: delete those that ``verify_cache`` finds bad. A second builder of one folder waits.

    Args:
        source: Shards, as a folder, paths, globs, brace patterns or URLs (fsspec's); or a folder of images
            with one sub-directory per class, or with these in ``train``, ``val`` and ``test``, which become
            shards ``train-*``, ``val-*`` and ``test-*`` (see ``Folder``).
        dest: Folder of the cache.
        codec: ``Tiled()`` by default, ``Packed()``, ``Resized(...)``, ``Raw()``, ``Original()`` or an object
            with ``encode``.
        executor: Executor of the jobs, one per shard; or a number of local processes (0: this process); by
            default one per core, and this process for local sources below 64 MB.
        layout: Distribution of the samples over the shards; by default that of the source.
        masks: Extension of the members that are masks, such as "png", or a list of these: PNGs that are
            written again in bands of rows, of which ``Masks`` decodes those under the crop. Other programs
            read them as before, with the same pixels. By default all members but the image stay as they are,
            byte for byte.
        targets: Targets as of ``Split``, such as ``tarpeg.Boxes("json:objects")``, or a list or dict of
            these: when all shards are there, they are read as training reads them, also from shards of an
            earlier build, and those that are broken or do not fit their image are counted and listed in the
            report. None is left out. The shards do not depend on it.
        max_bad: Largest fraction of undecodable samples, 0 to 1 (ten are allowed, unless it is 0). They are
            left out and listed in the manifest.
        replace: Replace a cache of another source or codec in ``dest``, or of this source and others.
        progress: Called after each shard.

    Returns:
        Contents of the cache, and what this build added.

    Raises:
        ValueError: For an argument out of range.
        ShardError: If the source cannot be read.
        CacheError: If too many samples are undecodable, ``dest`` holds a cache of another source or codec,
            or other files, or the cache cannot be written.

    Example:
        >>> report = tarpeg.build_cache(folder, tmp, tarpeg.Tiled(tile=64), executor=0)
        >>> report.samples, report.classes
        (16, ['cat', 'dog'])
    """
    started = time.monotonic()
    codec = Tiled() if codec is None else codec
    layout = Layout() if layout is None else layout
    _check_codec(codec)
    if not 0 <= max_bad <= 1:
        raise ValueError(f"max_bad={max_bad!r} must be a fraction from 0 to 1")
    if isinstance(executor, int) and executor < 0:
        raise ValueError(f"executor={executor!r} must be an Executor, or a number of processes, 0 or more")
    folder = Path(local_folder("dest", dest)).expanduser().absolute()
    listing = list_source(source)
    _check_apart(listing, folder)
    _check_own(folder)
    library.load()  # compiles the operators if necessary: once, not in every worker
    builder = _Builder(
        folder=folder,
        listing=listing,
        codec=codec,
        layout=layout,
        masks=names_of(masks),
        max_bad=max_bad,
        replace=replace,
        progress=progress,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _exclusive(folder):
            manifest = builder.build(executor)
    except OSError as error:
        raise CacheError(f"cannot write to {folder}: {error}. Finished shards are kept.") from error
    broken = _broken_targets(folder, manifest, targets, executor)
    findings = builder.findings | _joined_findings(manifest.shards)
    if broken:
        first = broken[0]
        count = len({(each.shard, each.key) for each in broken})
        findings[BROKEN_TARGET] = Finding(count, first.shard, first.key, first.what)
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
        left_out=count_left_out(listing if isinstance(listing, Folder) else source),
        findings=findings,
        classes=builder.classes,
        converted=summed(result.converted for result in builder.results.values()),
        is_split=not isinstance(listing, Folder) or listing.split != "all" or "" not in listing.parts(),
        codec=manifest.codec["name"],
        broken_targets=broken,
    )


def _broken_targets(
    folder: Path, manifest: Manifest, targets: Any, executor: Executor | int | None
) -> tuple[Problem, ...]:
    """Return the broken targets of all shards, in their order."""
    if targets is None:
        return ()
    if executor is None and manifest.bytes < _BYTES_PER_PROCESS:
        executor = 0
    names, found = [entry.name for entry in manifest.shards], dict[str, list[Problem]]()
    with open_executor(executor, len(names)) as pool:
        calls = ((str(folder), name, targets) for name in names)
        for name, broken in completed(pool, broken_targets, calls, lambda: None):
            found[name] = broken
    return tuple(each for name in names for each in found[name])


def _check_codec(codec: object) -> None:
    if not is_dataclass(codec) or isinstance(codec, type) or not hasattr(codec, "encode"):
        raise ValueError(
            f"codec={codec!r} must be a codec such as Tiled(), Packed(), Resized(256), Raw() or Original()"
        )


def _check_apart(listing: list[SourceShard] | Folder, folder: Path) -> None:
    """Refuse a cache inside its own source, which would then contain it."""
    target = folder.resolve()
    if not isinstance(listing, Folder):
        inside = any(not s.is_remote and Path(s.location).resolve().parent == target for s in listing)
    else:
        root = Path(listing.root).resolve()
        inside = root in (target, *target.parents)
        with suppress(ShardError):
            if root.parent == target and any(
                part.directory() == root for part in Folder(str(target)).parts().values()
            ):
                raise ValueError(
                    f"dest={str(folder)!r} holds images in train, val or test, which shards beside them "
                    "would hide: choose another folder"
                )
    if inside:
        raise ValueError(f"dest={str(folder)!r} is inside the source: choose another folder")


def _check_own(folder: Path) -> None:
    """Refuse a folder of other files, among which a cache would be scattered; shards are refused later."""
    if (folder / MANIFEST).exists() or (folder / BUILDING).exists() or not folder.is_dir():
        return
    if folder.resolve() in (Path("/"), Path.home().resolve()):
        raise CacheError(f"dest={str(folder)!r} is the folder of everything else: choose a new one")
    files = sorted(path.name for path in folder.iterdir() if path.name[0] != "." and path.is_file())
    if files and not any(name.endswith(".tar") for name in files):
        raise CacheError(
            f"dest={str(folder)!r} holds files that do not belong to a cache, {len(files)} in all, such as "
            f"{files[0]}: choose a new folder, or move them away"
        )


@dataclass
class _Builder:
    """One build: arguments, and what is known so far."""

    folder: Path
    listing: list[SourceShard] | Folder
    codec: Codec
    layout: Layout
    masks: tuple[str, ...]
    max_bad: float
    replace: bool
    progress: Callable[[Progress], object] | None
    built: int = 0
    example: ShardJob | None = None
    classes: list[str] | None = None
    names: list[str] = field(default_factory=list)  # of all shards, in order
    results: dict[str, ShardResult] = field(default_factory=dict)
    samples: int = 0
    source_bytes: int = 0
    bad: list[Quarantined] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)  # of the source, before any job

    def build(self, executor: Executor | int | None) -> Manifest:
        """Write what is missing in the folder, and return its manifest."""
        assignment, identity = self._assign()
        parameters = [job.describe_codec(self.codec), asdict(self.layout), *self.masks]
        fingerprint = job.hash_of([_FORMAT, identity, *parameters])
        manifest = _finished_manifest(self.folder, fingerprint)
        if manifest is not None:
            self.samples, self.bad = manifest.samples, list(manifest.quarantine)
            self._check_bad(manifest.samples + len(manifest.quarantine), self.max_bad)
            if assignment is not None:
                name, source = next(iter(assignment.inputs))
                self.example = self._job(name, source, fingerprint)
            if self.classes and self.classes != stored_classes(self.folder):  # built by an early version
                manifest = dataclasses.replace(manifest, classes=self.classes)
                manifest.write(self.folder)
            return manifest
        done = _start_build(self.folder, fingerprint, self._source(), self.codec, self.replace)
        on_abandon = partial(_withdraw_build, self.folder)
        with open_executor(executor, self._most_processes(assignment, executor)) as pool:
            if assignment is None:
                assert isinstance(self.listing, list)
                # Not kept in a variable: the assignment has a smaller form of these indexes.
                assignment = assign_samples(
                    self.listing, index_shards(self.listing, self.folder, pool, on_abandon), self.layout
                )
            self.bad += assignment.left_out
            calls = ((missing,) for missing in self._missing(assignment, done, fingerprint))
            for result in completed(pool, job.run_job, calls, on_abandon):
                self.built += 1
                self._add(assignment, result)
        self._check_bad(self.samples + len(self.bad), self.max_bad)
        manifest = self._manifest(fingerprint)
        _finish_build(self.folder, manifest)
        return manifest

    def _assign(self) -> tuple[Assignment | None, list[object]]:
        """Return the assignment, None if it takes indexing, and plain values that identify the source."""
        if isinstance(self.listing, Folder):
            files = assign_files(self.listing, self.layout)
            self.findings = files.findings
            self.classes = list(self.listing.classes())
            unreadable = [[bad.key, bad.reason] for bad in files.left_out]
            return files, [*(source.identity() for _, source in files.inputs), *unreadable]
        local = [Path(shard.location) for shard in self.listing if not shard.is_remote]
        self.classes = classes_beside(local)
        is_resharded = self.layout.is_cut or self.layout.shuffle
        assignment = None if is_resharded else assign_copies(self.listing)
        return assignment, [shard.identity for shard in self.listing]

    def _most_processes(self, assignment: Assignment | None, executor: Executor | int | None) -> int:
        """Return how many processes are of use; by default 1 for local sources below 64 MB."""
        jobs = assignment.shards if assignment else usable_cores()
        shards = [] if isinstance(self.listing, Folder) else self.listing
        if executor is None and not any(shard.is_remote for shard in shards):
            nbytes = assignment.source_bytes if assignment else sum(shard.nbytes for shard in shards)
            jobs = min(jobs, nbytes // _BYTES_PER_PROCESS)
        return jobs

    def _job(self, name: str, source: ShardInput, fingerprint: str) -> ShardJob:
        return ShardJob(
            dest=str(self.folder),
            name=name,
            source=source,
            codec=self.codec,
            build=fingerprint,
            masks=self.masks,
        )

    def _missing(
        self, assignment: Assignment, done: dict[str, ShardResult], fingerprint: str
    ) -> Iterator[ShardJob]:
        """Yield the jobs of shards that are missing or changed; add the results of the others."""
        for name, source in assignment.inputs:
            shard_job = self._job(name, source, fingerprint)
            self.example = self.example or shard_job
            self.names.append(name)
            result = done.get(name)
            if result is not None and result.fingerprint == shard_job.fingerprint:
                self._add(assignment, result)
            else:
                yield shard_job

    def _add(self, assignment: Assignment, result: ShardResult) -> None:
        self.results[result.name] = result
        self.samples += result.samples
        self.source_bytes += result.source_bytes
        self.bad += _quarantined(result)
        # The number of all samples is only estimated so far: fail early only beyond twice the limit.
        seen = self.samples + len(self.bad)
        share = min(1.0, self.source_bytes / max(assignment.source_bytes, 1))
        self._check_bad(seen / max(share, 1e-9), 2 * self.max_bad)
        if self.progress is not None:
            self.progress(
                Progress(
                    shards=len(self.results),
                    shards_total=assignment.shards,
                    kept=len(self.results) - self.built,
                    samples=self.samples,
                    bytes=self.source_bytes,
                    bytes_total=max(assignment.source_bytes, self.source_bytes),
                    quarantined=len(self.bad),
                )
            )

    def _check_bad(self, samples: float, limit: float) -> None:
        if len(self.bad) <= allowed_bad(limit, samples):
            return
        shown = [f"shard {bad.shard}, key {bad.key!r}: {bad.reason}" for bad in self.bad[:_SHOWN]]
        more = f"; and {len(self.bad) - _SHOWN} more" * (len(self.bad) > _SHOWN)
        seen = self.samples + len(self.bad)
        enough = next(n / 100 for n in range(1, 101) if len(self.bad) <= n / 100 * seen)
        remedy = f", or set max_bad={enough}" if self.samples else ""
        raise CacheError(
            f"{len(self.bad)} of {seen} samples cannot be used, more than max_bad={self.max_bad} allows: "
            f"{'; '.join(shown)}{more}. Repair the source{remedy}; finished shards are kept."
        )

    def _manifest(self, fingerprint: str) -> Manifest:
        if not self.samples:
            raise CacheError("the source has no decodable sample: there is nothing to cache.")
        results = [self.results[name] for name in self.names]
        shards = [_entry(result) for result in results if result.samples]
        quarantine = [bad for bad in self.bad if not bad.part]
        quarantine += [bad for result in results for bad in _quarantined(result)]
        return Manifest(
            tarpeg=__version__,
            fingerprint=fingerprint,
            source=self._source(),
            codec=job.describe_codec(self.codec),
            layout=asdict(self.layout),
            samples=self.samples,
            bytes=sum(shard.bytes for shard in shards),
            shards=shards,
            quarantine=quarantine,
            tiles=summed(shard.tiles for shard in shards),
            untiled=summed(shard.untiled for shard in shards),
            # _source() has those of a folder.
            classes=None if isinstance(self.listing, Folder) else self.classes,
        )

    def _source(self) -> list[object]:
        """Return the source as the manifest describes it: with absolute paths, to be recognised later."""
        if isinstance(self.listing, Folder):
            folder = self.listing
            part: dict[str, object] = {"folder": os.path.abspath(folder.root), "classes": folder.classes()}  # noqa: PTH100
            part |= {"split": folder.split, "seed": folder.seed}
            if folder.split in ("train", "val") and "val" not in Folder(folder.root).parts():
                part["val_share"] = folder.val_share
            return [part]
        return [shard.name if shard.is_remote else shard.location for shard in self.listing]


def _exclusive(folder: Path) -> AbstractContextManager[object]:
    """Make other builders of the folder wait. The lock ends with its process, even if that is killed."""
    with (folder / _BUILD_LOCK).open("ab") as probe:
        job.try_lock(probe)  # raises if there are no locks
    waiting = FileLock(folder / _BUILD_LOCK)
    try:
        return waiting.acquire(timeout=1)
    except Timeout:
        warn(f"another builder is at work in {folder}: waiting for it")
        return waiting.acquire()


def _finished_manifest(folder: Path, fingerprint: str) -> Manifest | None:
    """Return the manifest if the folder holds exactly that cache, with all shards in place."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.fingerprint != fingerprint or (folder / BUILDING).exists():
        return None
    results = _results_of(folder, manifest).values()
    return manifest if all(_is_in_place(folder, result) for result in results) else None


def _start_build(
    folder: Path, fingerprint: str, source: list[object], codec: Codec, replace: bool
) -> dict[str, ShardResult]:
    """Take the folder over for a build, remove temporaries of dead builders; return results by name.

    Only results of shards that are in place. Raises CacheError if there are shards of another origin, or of
    another source or, in a finished cache, codec and not `replace`.
    """
    with FileLock(folder / COMMIT_LOCK):
        for path in folder.iterdir():
            if path.suffix in (".tar", ".idx") and path.is_dir() and not path.is_symlink():
                raise CacheError(f"cannot write {path}: it is a folder. Move it away, then start again.")
        building = folder / BUILDING
        manifest = read_manifest(folder)
        results = _saved_results(building) if manifest is None else _results_of(folder, manifest)
        foreign = sorted(path.name for path in folder.glob("*.tar") if path.stem not in results)
        if foreign:
            raise CacheError(
                f"{folder} holds shards that do not belong to a cache, such as {foreign[0]}: choose another "
                "dest=, or move them away"
            )
        recorded = building / _SOURCE
        if manifest is not None:
            held = manifest.source
        else:  # an unfinished build; those of early versions did not record their source
            held = json.loads(read_regular(recorded)) if results and recorded.exists() else source
        if not replace and (lost := _lost(held, source, manifest is not None)):
            raise CacheError(
                Message(
                    f"{folder} holds a cache of another source, {lost}: choose another folder, delete this "
                    "one, or build with ",
                    Setting("build_cache", "replace", True),
                )
            )
        requested = job.describe_codec(codec)
        if not replace and manifest is not None and manifest.codec != requested:
            raise CacheError(
                Message(
                    f"{folder} holds a finished cache of {_shown(manifest.codec)}, and the codec of this "
                    f"build is {_shown(requested)}: choose another folder, delete this one, or build with ",
                    Setting("build_cache", "replace", True),
                )
            )
        building.mkdir(exist_ok=True)
        write_json(recorded, source)
        job.remove_temporaries(folder)
        if manifest is not None:
            for result in results.values():
                write_json(building / f"{result.name}.json", asdict(result))
        write_json(building / CURRENT_BUILD, {"fingerprint": fingerprint})
    return {name: result for name, result in results.items() if _is_in_place(folder, result)}


def _shown(codec: CodecEntry) -> str:
    return f"{codec['name']}({', '.join(f'{name}={value!r}' for name, value in codec['parameters'].items())})"


def _withdraw_build(folder: Path) -> None:
    """End the build without a cache: running jobs find that it is not theirs any more, and stop."""
    with FileLock(folder / COMMIT_LOCK):
        (folder / BUILDING / CURRENT_BUILD).unlink(missing_ok=True)


def _finish_build(folder: Path, manifest: Manifest) -> None:
    """Remove shards that are no longer part of the cache, and write the manifest."""
    with FileLock(folder / COMMIT_LOCK):
        # Written elsewhere first, so that a full disk destroys nothing.
        aside = folder / BUILDING / "finished"
        aside.mkdir(exist_ok=True)
        manifest.write(aside)
        (folder / MANIFEST).unlink(missing_ok=True)
        for name in _saved_results(folder / BUILDING).keys() - {Path(e.name).stem for e in manifest.shards}:
            for kind in ("tar", "idx", "tarpeg.sizes"):
                (folder / f"{name}.{kind}").unlink(missing_ok=True)
        (aside / MANIFEST).replace(folder / MANIFEST)
        shutil.rmtree(folder / BUILDING)


def _lost(held: list[object], source: list[object], is_finished: bool) -> str:
    """Return a part of a recorded source that exists, but not in `source`; any part if they share none.

    Empty if there is none: a source may grow, shards that were removed from it leave the cache, and a broken
    one may be left out of a build that it stopped.
    """
    old, new = (held or source)[0], source[0]
    if isinstance(old, dict) and isinstance(new, dict) and _place(old) == _place(new):
        # Early versions recorded neither split nor seed.
        other = [f"{name}={old[name]!r}" for name in _OPTIONS if name in old and old[name] != new.get(name)]
        return f"{_place(old)} with {', '.join(other)}" if other else ""
    parts = set(map(_place, source))
    lost = sorted(place for place in map(_place, held) if place not in parts)
    existing = (place for place in lost if is_url(place) or os.path.lexists(place))
    if lost and len(lost) == len(held):
        return lost[0]
    return next(existing, "") if is_finished else ""


def _place(part: object) -> str:
    """Path or URL of a part of a source as the manifest describes it."""
    return resolved(str(part.get("folder") if isinstance(part, dict) else part))


def _joined_findings(shards: Iterable[ShardEntry]) -> dict[str, Finding]:
    """Add up the findings of shards; the first is that of the first shard."""
    joined: dict[str, Finding] = {}
    for kind, values in (item for shard in shards for item in shard.findings.items()):
        found = Finding(*values)  # a list, if a result was read from its file
        first = joined.get(kind) or found._replace(samples=0)
        joined[kind] = first._replace(samples=first.samples + found.samples)
    return joined


def _entry(result: ShardResult) -> ShardEntry:
    values = {entry.name: getattr(result, entry.name) for entry in fields(ShardEntry)}
    return ShardEntry(**{**values, "name": f"{result.name}.tar"})


def _quarantined(result: ShardResult) -> list[Quarantined]:
    return [Quarantined(*bad, f"{result.name}.tar") for bad in result.quarantine]


def _results_of(folder: Path, manifest: Manifest) -> dict[str, ShardResult]:
    """Return the results that a manifest was made of."""
    bad: dict[str, list[tuple[str, str, str]]] = {}
    for lost in manifest.quarantine:
        bad.setdefault(lost.part, []).append((lost.shard, lost.key, lost.reason))
    results = {}
    for entry in manifest.shards:
        name, (nbytes, mtime_ns) = Path(entry.name).stem, _size_and_time(folder / entry.name)
        values = {**asdict(entry), "name": name, "quarantine": bad.get(entry.name, [])}
        results[name] = ShardResult(**values, mtime_ns=mtime_ns if nbytes == entry.bytes else -1)
    return results


def _saved_results(building: Path) -> dict[str, ShardResult]:
    results = {}
    for path in sorted(building.glob("*.json")):
        try:
            result = ShardResult(**json.loads(read_regular(path)))
        except (ValueError, TypeError) as error:
            raise CacheError(f"{path} is damaged: delete the folder {building.parent}.") from error
        results[result.name] = result
    return results


def _is_in_place(folder: Path, result: ShardResult) -> bool:
    """Check the files of a result: the index by its checksum, the tar by size and time only.

    Reading all tars would take as long as verify_cache, whose summary has the remedy.
    """
    if not result.samples:
        return True
    tar = folder / f"{result.name}.tar"
    if _size_and_time(tar) != (result.bytes, result.mtime_ns):
        return False
    try:
        text = read_regular(tar.with_suffix(".idx"))
    except OSError:
        return False
    return hashlib.sha256(text).hexdigest() == result.idx_sha256


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return bytes and time of modification in ns; -1 for both without a file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return -1, -1
    return found.st_size, found.st_mtime_ns

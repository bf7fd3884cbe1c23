"""Building a cache: assign samples to shards, run one job per shard, write the manifest at the end."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import CacheError, allowed_bad, explains_arguments
from ..machine import usable_cores
from ..ops import library
from ..processes import completed, open_executor
from ..shards.image_names import ImageNames, check_images, keeps_names, listed, pattern_of, plain_list
from ..shards.manifest import (
    CodecEntry,
    Finding,
    Manifest,
    Quarantined,
    ShardEntry,
    reducing,
    summed,
)
from ..shards.urls import local_folder
from ..targets.reduced import refuse_reduced
from . import job
from .codecs import Codec, Tiled
from .job import ShardJob, ShardResult
from .layout import Assignment, Layout
from .listing import FolderListing, Listing, ShardListing, listing_of
from .masks import names_of
from .sources import ShardInput, Source
from .state import (
    check_own,
    exclusive,
    finish_build,
    finished_manifest,
    quarantined,
    start_build,
    withdraw_build,
)
from .targets import BROKEN_TARGET, Problem, broken_targets

_FORMAT = 1  # to be raised if the same source and parameters give other shards
_BYTES_PER_PROCESS = 32 << 20  # takes about as long as the start of a process, which imports torch
_SHOWN = 5  # reasons in an error
_NAMES = (
    " In shards, images are named KEY.EXTENSION, and the key ends at the first dot: 'v1.2.jpg' is the member "
    "'2.jpg' of 'v1'."
)


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
    images: ImageNames | None = None,
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
        images: For samples with several images, as of ``Split(image=...)``: extensions, ["left.jpg",
            "right.jpg"], or a pattern, "*.jpg". All of them are rewritten by ``codec``, as the image is.
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
            or other files, the cache cannot be written, or ``targets`` in pixels do not fit the images that
            ``codec`` reduces.

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
    refuse_reduced(targets, reducing(job.describe_codec(codec)), f"dest={str(folder)!r}")
    if images is not None:
        check_images("images", images)
    if isinstance(source, Iterator):  # Path.glob(); it is read more than once
        source = [*source]
    listing = listing_of(source, several=images is not None)
    if images is not None and isinstance(listing, FolderListing):
        raise ValueError(
            f"images={images!r} and source={listing.folder.root!r}, a folder with an image per sample: "
            "samples have several in shards, as KEY.left.jpg and KEY.right.jpg"
        )
    listing.refuse(folder)
    reducers = listing.reducers()
    for cache, reduced_by in reducers.items():
        refuse_reduced(targets, reduced_by, f"the source, the cache {cache}")
    check_own(folder)
    library.load()  # compiles the operators if necessary: once, not in every worker
    builder = _Builder(
        folder=folder,
        listing=listing,
        codec=codec,
        layout=layout,
        masks=names_of(masks),
        images=_plain(images),
        max_bad=max_bad,
        replace=replace,
        progress=progress,
        reduced_by=next(iter(reducers.values()), None),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder):
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
        left_out=listing.left_out(),
        findings=findings,
        classes=builder.classes,
        converted=summed(result.converted for result in builder.results.values()),
        is_split=listing.is_split(),
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


def _plain(images: ImageNames | None) -> str | tuple[str, ...]:
    """Return ``images=`` as a pattern or as extensions, () for none."""
    if images is None:
        return ()
    pattern = pattern_of(images)
    return listed(images) if pattern is None else pattern.text


def _check_codec(codec: object) -> None:
    if not is_dataclass(codec) or isinstance(codec, type) or not hasattr(codec, "encode"):
        raise ValueError(
            f"codec={codec!r} must be a codec such as Tiled(), Packed(), Resized(256), Raw() or Original()"
        )


@dataclass
class _Builder:
    """One build: arguments, and what is known so far."""

    folder: Path
    listing: Listing
    codec: Codec
    layout: Layout
    masks: tuple[str, ...]
    images: str | tuple[str, ...]
    max_bad: float
    replace: bool
    progress: Callable[[Progress], object] | None
    reduced_by: CodecEntry | None
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
        assignment, identity = self.listing.assign(self.layout)
        self.classes = self.listing.classes()
        if assignment is not None:
            self.findings = assignment.findings
        parameters = [job.describe_codec(self.codec), asdict(self.layout), *self.masks]
        parameters += [{"images": self.images}] if self.images else []
        parameters += ["names"] if keeps_names(self.images) else []
        fingerprint = job.hash_of([_FORMAT, identity, *parameters])
        manifest = finished_manifest(self.folder, fingerprint)
        if manifest is not None:
            self.samples, self.bad = manifest.samples, list(manifest.quarantine)
            self._check_bad(manifest.samples + len(manifest.quarantine), self.max_bad)
            if assignment is not None:
                name, source = next(iter(assignment.inputs))
                self.example = self._job(name, source, fingerprint)
            known = dataclasses.replace(
                manifest,
                classes=self.classes or manifest.classes,
                reduced_by=self.reduced_by or manifest.reduced_by,
            )
            if known != manifest:  # built by an early version
                known.write(self.folder)
            return known
        done = start_build(self.folder, fingerprint, self.listing.described(), self.codec, self.replace)
        on_abandon = partial(withdraw_build, self.folder)
        with open_executor(executor, self._most_processes(assignment, executor)) as pool:
            if assignment is None:
                assignment = self.listing.assign_by_index(self.layout, self.folder, pool, on_abandon)
            self.bad += assignment.left_out
            calls = ((missing,) for missing in self._missing(assignment, done, fingerprint))
            for result in completed(pool, job.run_job, calls, on_abandon):
                self.built += 1
                self._add(assignment, result)
        self._check_bad(self.samples + len(self.bad), self.max_bad)
        manifest = self._manifest(fingerprint)
        finish_build(self.folder, manifest)
        return manifest

    def _most_processes(self, assignment: Assignment | None, executor: Executor | int | None) -> int:
        """Return how many processes are of use; by default 1 for local sources below 64 MB."""
        jobs = assignment.shards if assignment else usable_cores()
        local = self.listing.local_nbytes()
        if executor is None and local is not None:
            nbytes = assignment.source_bytes if assignment else local
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
            images=self.images,
            of_cache=isinstance(self.listing, ShardListing) and self.listing.may_be_cached,
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
        self.bad += quarantined(result)
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
        seen = self.samples + len(self.bad)
        enough = next(n / 100 for n in range(1, 101) if len(self.bad) <= n / 100 * seen)
        remedy = f", or set max_bad={enough}" if self.samples else ""
        raise CacheError(
            f"{len(self.bad)} of {seen} samples cannot be used, more than max_bad={self.max_bad} allows: "
            f"{self._reasons()}. Repair the source{remedy}; finished shards are kept."
        )

    def _reasons(self) -> str:
        shown = [f"shard {bad.shard}, key {bad.key!r}: {bad.reason}" for bad in self.bad[:_SHOWN]]
        return "; ".join(shown) + f"; and {len(self.bad) - _SHOWN} more" * (len(self.bad) > _SHOWN)

    def _manifest(self, fingerprint: str) -> Manifest:
        if not self.samples:
            why = "the source has no sample"
            if self.bad:
                why = f"none of the {len(self.bad)} samples of the source can be used, {self._reasons()}"
            names = _NAMES * all(bad.reason.startswith(job.NO_IMAGE_AMONG) for bad in self.bad)
            raise CacheError(f"there is nothing to cache: {why}.{names}")
        results = [self.results[name] for name in self.names]
        shards = [_entry(result) for result in results if result.samples]
        quarantine = [bad for bad in self.bad if not bad.part]
        quarantine += [bad for result in results for bad in quarantined(result)]
        return Manifest(
            tarpeg=__version__,
            fingerprint=fingerprint,
            source=self.listing.described(),
            codec=job.describe_codec(self.codec),
            layout=asdict(self.layout),
            samples=self.samples,
            bytes=sum(shard.bytes for shard in shards),
            shards=shards,
            quarantine=quarantine,
            tiles=summed(shard.tiles for shard in shards),
            untiled=summed(shard.untiled for shard in shards),
            classes=self.classes,
            images=plain_list(self.images) if self.images else [],
            reduced_by=self.reduced_by,
        )


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

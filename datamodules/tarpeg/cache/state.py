"""The folder of a cache on disk: a finished cache, or an unfinished build and its finished shards.

A finished cache has a manifest. While it is built, DEST/.building holds one NAME.json per finished shard.
A build turns an existing manifest into such results, and the first job that replaces a shard removes it:
there is a manifest only if every shard is as it describes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from ..errors import CacheError, warn
from ..files import read_regular, write_json
from ..remedies import Message, Setting
from ..shards.manifest import BUILDING, MANIFEST, CodecEntry, Manifest, Quarantined, read_manifest
from ..shards.paths import resolved
from ..shards.saved import SIZES_SUFFIX
from ..shards.urls import is_url
from . import job
from .codecs import Codec
from .job import COMMIT_LOCK, CURRENT_BUILD, ShardResult

_BUILD_LOCK, _SOURCE = ".build.lock", "build.source"
_OPTIONS = ("split", "seed", "val_share")  # of a Folder, which identify it together with its path


def check_own(folder: Path) -> None:
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


def exclusive(folder: Path) -> AbstractContextManager[object]:
    """Make other builders of the folder wait. The lock ends with its process, even if that is killed."""
    with (folder / _BUILD_LOCK).open("ab") as probe:
        job.try_lock(probe)  # raises if there are no locks
    waiting = FileLock(folder / _BUILD_LOCK)
    try:
        return waiting.acquire(timeout=1)
    except Timeout:
        warn(f"another builder is at work in {folder}: waiting for it")
        return waiting.acquire()


def finished_manifest(folder: Path, fingerprint: str) -> Manifest | None:
    """Return the manifest if the folder holds exactly that cache, with all shards in place."""
    manifest = read_manifest(folder)
    if manifest is None or manifest.fingerprint != fingerprint or (folder / BUILDING).exists():
        return None
    results = _results_of(folder, manifest).values()
    return manifest if all(_is_in_place(folder, result) for result in results) else None


def start_build(
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
            has_samples = any(result.samples for result in results.values())
            held = json.loads(read_regular(recorded)) if has_samples and recorded.exists() else source
        if not replace and (lost := _lost(held, source, manifest is not None)):
            raise CacheError(
                Message(
                    f"{folder} holds a cache of another source, {lost}: choose another folder, delete this "
                    "one, or build with ",
                    Setting("build_cache", "replace", True),
                    ", if that object was deleted too" * is_url(lost),
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
        gone = [place for place in _dropped(held, source) if not _may_exist(place)]
        if gone and manifest is not None and not replace:
            warn(
                f"{folder}: {len(gone)} of the {len(held)} shards of its source are gone, such as {gone[0]}. "
                "Their samples leave the cache"
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


def withdraw_build(folder: Path) -> None:
    """End the build without a cache: running jobs find that it is not theirs any more, and stop."""
    with FileLock(folder / COMMIT_LOCK):
        (folder / BUILDING / CURRENT_BUILD).unlink(missing_ok=True)


def finish_build(folder: Path, manifest: Manifest) -> None:
    """Remove shards that are no longer part of the cache, and write the manifest."""
    with FileLock(folder / COMMIT_LOCK):
        # Written elsewhere first, so that a full disk destroys nothing.
        aside = folder / BUILDING / "finished"
        aside.mkdir(exist_ok=True)
        manifest.write(aside)
        (folder / MANIFEST).unlink(missing_ok=True)
        for name in _saved_results(folder / BUILDING).keys() - {Path(e.name).stem for e in manifest.shards}:
            for suffix in (".tar", ".idx", SIZES_SUFFIX):
                (folder / f"{name}{suffix}").unlink(missing_ok=True)
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
    lost = _dropped(held, source)
    if lost and len(lost) == len(held):
        return lost[0]
    return next(filter(_may_exist, lost), "") if is_finished else ""


def _dropped(held: list[object], source: list[object]) -> list[str]:
    """Return the places of a recorded source that are not in `source`."""
    parts = set(map(_place, source))
    return sorted(place for place in map(_place, held) if place not in parts)


def _may_exist(place: str) -> bool:
    """Whether there is a file or folder; of a URL it is not known."""
    return is_url(place) or os.path.lexists(place)


def _place(part: object) -> str:
    """Path or URL of a part of a source as the manifest describes it."""
    return resolved(str(part.get("folder") if isinstance(part, dict) else part))


def quarantined(result: ShardResult) -> list[Quarantined]:
    """Return the samples that a shard lacks, as the manifest has them."""
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

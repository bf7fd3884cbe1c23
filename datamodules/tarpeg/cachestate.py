"""What a cache build leaves on disk while it lasts: one record a finished shard, in DEST/.building.

A finished cache has a manifest and no such folder. A build turns the manifest into records first, and the
first job that replaces a shard removes it: there is a manifest only where every shard is what it says.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from filelock import FileLock, Timeout

from .cachejob import BUILD, COMMIT_LOCK, Record, lock, remove_temporaries
from .errors import CacheError
from .manifest import BUILDING, MANIFEST, Manifest, Quarantined, ShardEntry, read_manifest
from .packing import write_json

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

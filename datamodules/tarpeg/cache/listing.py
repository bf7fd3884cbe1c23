"""What a source holds, as the builder of a cache asks for it: shards, or a folder of images with classes."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from ..errors import CacheError, ShardError, warn
from ..shards.classes import classes_beside
from ..shards.folder import Folder
from ..shards.manifest import CodecEntry
from ..shards.opening import reducers_among
from ..shards.paths import Paths, expand, left_out_beside, parts_of, refuse_several_splits
from ..shards.urls import URL, file_name, is_pattern
from .layout import Assignment, Layout, assign_copies, assign_files, assign_samples, index_shards
from .sources import Source, SourceShard, list_source


class Listing(Protocol):
    """A source of a cache. Each method may raise ShardError."""

    def refuse(self, dest: Path) -> None:
        """Raise ValueError if a cache in that folder would be inside the source, or hide it."""

    def assign(self, layout: Layout) -> tuple[Assignment | None, list[object]]:
        """Return the assignment, None if it takes indexing, and plain values that identify the source."""

    def assign_by_index(
        self, layout: Layout, folder: Path, pool: Executor, on_abandon: Callable[[], None]
    ) -> Assignment:
        """Index the source, with the pool, and return the assignment; folder and on_abandon of the build."""

    def local_nbytes(self) -> int | None:
        """Bytes of the source; None if a part of it is remote."""

    def reducers(self) -> dict[str, CodecEntry]:
        """Return the codecs that have reduced the images of caches among the source, by the cache."""

    def classes(self) -> list[str] | None:
        """Return the names of the classes by label; None if they are unknown."""

    def described(self) -> list[object]:
        """Return the source for the manifest, with absolute paths, to be recognised later."""

    def left_out(self) -> dict[str, int]:
        """Count the files beside those of the cache, by kind."""

    def is_split(self) -> bool:
        """Whether it may be trained and validated on; False for a folder without train and val."""


def listing_of(source: Source, *, several: bool = False) -> Listing:
    """List the shards of a source, or recognise a folder of images: one without shards, but with folders.

    ``several``: samples may have several images, which those of a folder do not.

    Raises ShardError if shards are missing, or named twice.
    """
    if isinstance(source, Folder):
        return FolderListing(source)
    parts = parts_of(source)
    if len(parts) == 1 and not URL.match(parts[0]):
        root = Path(parts[0]).expanduser()
        # Path.glob yields nothing if root is not a directory.
        if not any(root.glob("*.tar")) and any(entry.is_dir() for entry in root.glob("[!.]*")):
            return FolderListing(Folder(str(root)))
    return ShardListing(source, list_source(source), several)


@dataclass(frozen=True)
class ShardListing:
    """Local or remote shards.

    Attributes:
        source: As given by the user.
        shards: The shards, in order.
        several: Whether samples may have several images.
    """

    source: Paths
    shards: list[SourceShard]
    several: bool = False

    @cached_property
    def may_be_cached(self) -> bool:
        """Whether one of the shards may be of a cache."""
        return any(one.may_be_cached for one in self.shards)

    def refuse(self, dest: Path) -> None:
        """Raise ValueError if the folder has one of the shards."""
        target = dest.resolve()
        if any(not one.is_remote and Path(one.location).resolve().parent == target for one in self.shards):
            raise _inside(dest)

    def assign(self, layout: Layout) -> tuple[Assignment | None, list[object]]:
        """Return a copy of each shard, None if they are cut or shuffled, and what identifies them."""
        is_resharded = layout.is_cut or layout.shuffle
        if is_resharded:
            self._refuse_mixing()
        return None if is_resharded else assign_copies(self.shards), [one.identity for one in self.shards]

    def _refuse_mixing(self) -> None:
        """Raise ShardError for a folder with shards of several splits, which new shards would mix."""
        parts = parts_of(self.source)
        for part in parts:
            names: list[str] = []
            if not URL.match(part):
                is_folder = Path(part).expanduser().is_dir()
                names = [path.name for path in expand(part)] if is_folder else []
            elif len(parts) == 1 and not part.endswith(".tar") and not is_pattern(part.rstrip("/")):
                names = [file_name(one.location) for one in self.shards]
            refuse_several_splits(part, names, "source")

    def assign_by_index(
        self, layout: Layout, folder: Path, pool: Executor, on_abandon: Callable[[], None]
    ) -> Assignment:
        """Index the shards, and distribute their samples over others."""
        # Not kept in a variable: the assignment has a smaller form of these indexes.
        indexes = index_shards(self.shards, folder, pool, on_abandon, self.several)
        return assign_samples(self.shards, indexes, layout)

    def local_nbytes(self) -> int | None:
        """Bytes of the shards; None if one of them is remote."""
        if any(one.is_remote for one in self.shards):
            return None
        return sum(one.nbytes for one in self.shards)

    def reducers(self) -> dict[str, CodecEntry]:
        """Return the codecs in the manifests beside the shards, if they have reduced images."""
        return reducers_among(one.location for one in self.shards)

    def classes(self) -> list[str] | None:
        """Return the classes stored beside the local shards; None, with a warning, if they differ."""
        try:
            return classes_beside([Path(one.location) for one in self.shards if not one.is_remote])
        except CacheError:
            raise
        except ShardError as error:  # the labels may be of no use, as in training without any
            warn(f"the cache has no names of classes: {error}")
            return None

    def described(self) -> list[object]:
        """Return the shards' paths and URLs."""
        return [one.name if one.is_remote else one.location for one in self.shards]

    def left_out(self) -> dict[str, int]:
        """Count folders, other archives and images beside the shards; other files are no samples."""
        return left_out_beside(self.source)

    def is_split(self) -> bool:
        """Return True: splits of shards are up to the user."""
        return True


@dataclass(frozen=True)
class FolderListing:
    """A folder of images."""

    folder: Folder

    def refuse(self, dest: Path) -> None:
        """Raise ValueError if the cache would be in the folder, or beside it if that is a split."""
        target = dest.resolve()
        root = Path(self.folder.root).resolve()
        with suppress(ShardError):
            if root.parent == target and any(
                part.directory() == root for part in Folder(str(target)).parts().values()
            ):
                raise ValueError(
                    f"dest={str(dest)!r} holds images in train, val or test, which shards beside them "
                    "would hide: choose another folder"
                )
        if root in (target, *target.parents):
            raise _inside(dest)

    def assign(self, layout: Layout) -> tuple[Assignment | None, list[object]]:
        """Return shards of its images, and what identifies them."""
        files = assign_files(self.folder, layout)
        unreadable = [[bad.key, bad.reason] for bad in files.left_out]
        return files, [*(source.identity() for _, source in files.inputs), *unreadable]

    def assign_by_index(
        self, layout: Layout, folder: Path, pool: Executor, on_abandon: Callable[[], None]
    ) -> Assignment:
        """Return shards of its images, which need no index."""
        return assign_files(self.folder, layout)

    def local_nbytes(self) -> int | None:
        """0: the assignment has the number."""
        return 0

    def reducers(self) -> dict[str, CodecEntry]:
        """Return {}: it is no cache."""
        return {}

    def classes(self) -> list[str] | None:
        """Return the names of its directories."""
        return list(self.folder.classes())

    def described(self) -> list[object]:
        """Return its path, its classes, and what else decides about its images."""
        folder = self.folder
        part: dict[str, object] = {"folder": os.path.abspath(folder.root), "classes": folder.classes()}  # noqa: PTH100
        part |= {"split": folder.split, "seed": folder.seed}
        if folder.split in ("train", "val") and "val" not in Folder(folder.root).parts():
            part["val_share"] = folder.val_share
        return [part]

    def left_out(self) -> dict[str, int]:
        """Count the files that are not in the cache."""
        return self.folder.left_out()

    def is_split(self) -> bool:
        """Whether it has directories train and val, or is one of them."""
        return self.folder.split != "all" or "" not in self.folder.parts()


def _inside(dest: Path) -> ValueError:
    return ValueError(f"dest={str(dest)!r} is inside the source: choose another folder")

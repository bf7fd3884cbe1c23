"""Local shards: expanding their names, and reading samples out of memory-mapped tars by number."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from braceexpand import braceexpand

from .errors import ShardError
from .tarindex import EXTENSION, IMAGE, KEY_END, MEMBER_END, OFFSET, SAVED_SUFFIX, SIZE, load_or_build

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|pipe:")
_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
_LONGEST_LABEL = 64
_LIMIT = 1 << 63

Int64 = npt.NDArray[np.int64]


def expand(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Name the shards of a source: a path, a folder, a glob, a brace pattern, or a list of these.

    A folder means all *.tar in it (not below it), sorted; a glob's matches are sorted too; otherwise the
    order is as given. Braces as in bash: "train-{000..009}.tar". Raises ShardError for whatever names no
    local file, and for a shard that is named twice.
    """
    parts = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not parts:
        raise ShardError("source=[] names no shard. Give a folder, a glob, a brace pattern or paths.")
    paths = [path for part in parts for path in _expand_one(os.fspath(part))]
    seen: set[str] = set()
    for path in paths:
        absolute = os.path.normpath(path.absolute())
        if absolute in seen:
            raise ShardError(
                f"shard {path} is named twice by source={source!r}: its samples would come twice."
            )
        seen.add(absolute)
    return paths


def _expand_one(text: str) -> Iterator[Path]:
    if _URL.match(text):
        raise ShardError(
            f"source={text!r}: remote shards are not supported yet. Copy them to a local folder first."
        )
    if text.startswith("~/"):
        text = str(Path.home() / text[2:])
    # An existing name wins over its reading as a pattern: folders with brackets or braces do occur.
    if not text or os.path.lexists(text):
        yield from _expand_existing(text)
    elif "{" in text or "}" in text:
        yield from _expand_braces(text)
    elif glob.has_magic(text):
        names = glob.glob(text, recursive=True)  # noqa: PTH207 (Path.glob refuses absolute patterns)
        # A pattern such as "train-*" also matches the indexes that an earlier run saved beside the shards.
        names = [name for name in names if not name.endswith(SAVED_SUFFIX)]
        files = sorted(path for path in map(Path, names) if path.is_file())
        if not files:
            raise ShardError(
                f"source={text!r}: no file matches this pattern. Check the folder and the pattern."
            )
        yield from files
    else:
        raise ShardError(_missing(text))


def _expand_existing(text: str) -> Iterator[Path]:
    path = Path(text)
    if not text:
        raise ShardError("source='' names no shard. Give a folder, a glob, a brace pattern or paths.")
    if not path.is_dir():
        yield path
        return
    try:
        files = sorted(entry for entry in path.iterdir() if _is_visible_tar(entry))
    except OSError as error:
        raise ShardError(f"source={text!r}: the folder cannot be read: {error.strerror}.") from error
    if not files:
        raise ShardError(f"source={text!r}: the folder holds no .tar file (folders in it are not searched).")
    yield from files


def _is_visible_tar(path: Path) -> bool:
    # Dot files are what macOS ("._a.tar") and unfinished copies leave behind.
    return path.suffix == ".tar" and not path.name.startswith(".") and path.is_file()


def _expand_braces(text: str) -> Iterator[Path]:
    try:
        names = list(braceexpand(text))
    except ValueError as error:
        raise ShardError(
            f"source={text!r}: the braces do not match. Write it like train-{{000..009}}.tar."
        ) from error
    for name in names:
        if name == text or "{" in name:
            raise ShardError(_missing(text))
        yield from _expand_one(name)


def _missing(text: str) -> str:
    folder = Path(text).absolute().parent
    if not folder.is_dir():
        return f"shard {text} does not exist, nor does its folder {folder}. Check the path."
    count = sum(1 for entry in folder.iterdir() if _is_visible_tar(entry))
    return f"shard {text} does not exist; its folder {folder} holds {count} .tar files. Check the name."


class Shards:
    """The samples of local tars, numbered 0..len-1 in the order of the shards.

    Tars are indexed once (see tarindex) and mapped when first touched; images are views on the map.
    Pickles without the maps: another process maps anew. Raises ShardError for a tar that is missing, broken,
    without images, or changed since it was indexed; warns once per shard about samples without an image.
    """

    def __init__(self, paths: Sequence[Path], *, threads: int = 8) -> None:
        """Index the tars at paths, threads of them at once (this hides the latency of disks)."""
        if not paths:
            raise ShardError("paths=[] names no shard. Give at least one tar.")
        # Absolute, because a worker or Hydra may have changed the working directory when a map is opened.
        self._paths = [Path(path).absolute() for path in paths]
        with ThreadPoolExecutor(max(1, min(threads, len(self._paths)))) as pool:
            indexes = list(pool.map(load_or_build, self._paths))
        for path, index in zip(self._paths, indexes, strict=True):
            if index.left_out:
                warnings.warn(
                    f"shard {path}: {index.left_out} samples have no image and are left out, "
                    f"the first is key {index.first_left_out!r}",
                    UserWarning,
                    stacklevel=2,
                )
        self._stats = [(index.tar_size, index.tar_mtime_ns) for index in indexes]
        counts = np.array([index.samples.shape[1] for index in indexes])
        self._shard = np.repeat(np.arange(len(indexes), dtype=np.int32), counts)
        self._key_ends = _joined_ends([index.samples[KEY_END] for index in indexes])
        self._member_ends = _joined_ends([index.samples[MEMBER_END] for index in indexes])
        shift = np.cumsum([0] + [index.members.shape[1] for index in indexes[:-1]])
        self._image = np.concatenate([i.samples[IMAGE] + s for i, s in zip(indexes, shift, strict=True)])
        self._keys = b"".join(index.keys.tobytes() for index in indexes)
        codes: dict[str, int] = {}
        renumbered = []
        for index in indexes:
            table = np.array([codes.setdefault(name, len(codes)) for name in index.extensions], np.int32)
            renumbered.append(table[index.members[EXTENSION]])
        self._codes = codes
        self._extension = np.concatenate(renumbered)
        self._offset = np.concatenate([index.members[OFFSET] for index in indexes])
        self._size = np.concatenate([index.members[SIZE] for index in indexes])
        self._maps: list[torch.Tensor | None] = [None] * len(indexes)
        self._views: list[memoryview | None] = [None] * len(indexes)
        self._columns: dict[str, Int64] = {}

    def __len__(self) -> int:
        return len(self._image)

    def __getstate__(self) -> dict[str, object]:
        nothing = [None] * len(self._paths)
        return {**self.__dict__, "_maps": nothing, "_views": nothing.copy(), "_columns": {}}

    def images(self, ids: npt.ArrayLike) -> list[torch.Tensor]:
        """Take the images of samples ids [B]: uint8 [n] each, views on the map (never write to them).

        A member of 0 bytes gives an empty tensor. Raises IndexError for an id outside 0..len-1.
        """
        rows = self._checked(ids)
        members = self._image[rows]
        maps = self._maps
        views = []
        for shard, offset, size in zip(
            self._shard[rows].tolist(),
            self._offset[members].tolist(),
            self._size[members].tolist(),
            strict=True,
        ):
            tar = maps[shard]
            if tar is None:
                tar = self._map(shard)
            views.append(tar.narrow(0, offset, size))
        return views

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> torch.Tensor:
        """Read the labels of samples ids [B]: int64 [B], ASCII integers in the members of that extension.

        Raises ShardError, with shard and key, where the member is missing or holds no integer.
        """
        rows = self._checked(ids)
        members = self._column(_plain(extension))[rows]
        if (members < 0).any():
            id = int(rows[members < 0][0])
            raise ShardError(
                f"{self._where(id)} has no member {_plain(extension)!r}, only {self.extensions(id)}. "
                "Write its label as KEY.cls, or name the extension that holds it."
            )
        shards, offsets = self._shard[rows].tolist(), self._offset[members].tolist()
        sizes = np.minimum(self._size[members], _LONGEST_LABEL + 1).tolist()
        labels = []
        for row, (shard, offset, size) in enumerate(zip(shards, offsets, sizes, strict=True)):
            text = self._bytes(shard, offset, size)
            if size > _LONGEST_LABEL or not _INTEGER.fullmatch(text) or not -_LIMIT <= int(text) < _LIMIT:
                shown = text[:32].decode("utf-8", "replace") + ("..." if size > 32 else "")
                raise ShardError(
                    f"{self._where(int(rows[row]))}: member {_plain(extension)!r} is {shown!r}, not a 64-bit "
                    "integer. A label is an integer in ASCII digits, such as 7."
                )
            labels.append(int(text))
        return torch.tensor(labels, dtype=torch.int64)

    def member(self, id: int, extension: str) -> bytes | None:
        """Read the sample's member of that extension as bytes, or None where it has none."""
        (row,) = self._checked([id]).tolist()
        member = int(self._column(_plain(extension))[row])
        if member < 0:
            return None
        return self._bytes(int(self._shard[row]), int(self._offset[member]), int(self._size[member]))

    def extensions(self, id: int) -> list[str]:
        """List the extensions of the sample's members, lowercase, without the dot, in the tar's order."""
        (row,) = self._checked([id]).tolist()
        names = list(self._codes)
        codes = self._extension[self._member_ends[row] : self._member_ends[row + 1]]
        return [names[code] for code in codes.tolist()]

    def key(self, id: int) -> str:
        """Name the sample: its key, with its folders."""
        (row,) = self._checked([id]).tolist()
        return self._keys[self._key_ends[row] : self._key_ends[row + 1]].decode("utf-8", "surrogateescape")

    def shard(self, id: int) -> Path:
        """Name the tar that holds the sample, by its absolute path."""
        (row,) = self._checked([id]).tolist()
        return self._paths[int(self._shard[row])]

    def _checked(self, ids: npt.ArrayLike) -> Int64:
        rows = np.asarray(ids)
        if rows.size == 0:
            return np.empty(0, np.int64)
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise TypeError(f"ids must be integers [B], not {rows.dtype} {list(rows.shape)}")
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"ids must be in 0..{len(self) - 1}, not {rows.min()}..{rows.max()}")
        return rows.astype(np.int64, copy=False)

    def _where(self, id: int) -> str:
        return f"shard {self.shard(id)}, key {self.key(id)!r}"

    def _bytes(self, shard: int, offset: int, size: int) -> bytes:
        view = self._views[shard] or self._map(shard).numpy().data
        return bytes(view[offset : offset + size])

    def _column(self, extension: str) -> Int64:
        """Find each sample's member of that extension, -1 where it has none; computed at first use."""
        column = self._columns.get(extension)
        if column is None:
            column = np.full(len(self), -1, np.int64)
            members = np.flatnonzero(self._extension == self._codes.get(extension, -1))
            column[np.searchsorted(self._member_ends, members, side="right") - 1] = members
            self._columns[extension] = column
        return column

    def _map(self, shard: int) -> torch.Tensor:
        """Map a tar. Offsets beyond a file that shrank would be a bus error, hence the check before."""
        path = self._paths[shard]
        try:
            found = path.stat()
            if (found.st_size, found.st_mtime_ns) != self._stats[shard]:
                raise ShardError(f"shard {path} changed since it was indexed. Start again to index it anew.")
            # from_file maps privately, and keeps no file descriptor, of which 1000 shards would need 1000.
            tar = torch.from_file(str(path), shared=False, size=found.st_size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:
            if isinstance(error, ShardError):
                raise
            raise ShardError(
                f"shard {path} cannot be mapped: {error}. Check the file and the free memory."
            ) from error
        self._views[shard] = tar.numpy().data
        self._maps[shard] = tar
        return tar


def _plain(extension: str) -> str:
    return extension.removeprefix(".").lower()


def _joined_ends(ends: list[Int64]) -> Int64:
    """Join the running ends within each shard to starts over all shards, [S + 1] with the last end."""
    shifts = np.cumsum([0] + [int(end[-1]) for end in ends])
    return np.concatenate([[0], *(end + shift for end, shift in zip(ends, shifts[:-1], strict=True))])

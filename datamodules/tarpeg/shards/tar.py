"""Members of a tar, by position in a file or in the order of a stream, and their grouping into samples.

Samples are grouped as in webdataset 1.0.2 (its ``tariterators.py``): consecutive members of equal key form a
sample, and the first dot of the basename separates the key from the extension.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, TypeVar

from ..errors import ShardError, warn
from .pillow import is_image_name

BLOCK = 512
"""Bytes of a block: headers and data begin at one."""
_EXTENDED = 2048  # blocks of extended headers that is_member looks for; longer ones are rare
LONGEST_HEADERS = (_EXTENDED + 2) * BLOCK
"""Bytes before a member's data in which is_member finds its headers."""
_PAX_RECORD = re.compile(rb"([0-9]{1,8}) ([^=]+)=")
_KEY_AND_EXTENSION = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
IGNORED = re.compile(r"__[^/]*__($|/)")
"""Names of members, and of the folders that they are in, which webdataset ignores."""
# A damaged tar reaches the internals of tarfile, which raise more than its own exceptions.
_BROKEN_TAR = (tarfile.TarError, ValueError, OverflowError, EOFError, IndexError, MemoryError, RecursionError)
_COMPRESSED = "is compressed; shards are memory-mapped and must be uncompressed: run {} on it"
_ZSTD, _XZ, _LZMA = b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"\x5d\0\0\x80"
_HEAD = 32  # bytes of a file that show its format
_IMAGE = "is an image, not a tar: give the folder of the images"
# First bytes of common files that are not tars, and the end of the message.
_OTHER_FORMATS = (
    (b"\x1f\x8b", _COMPRESSED.format("gunzip")),
    (b"BZh", _COMPRESSED.format("bunzip2")),
    (_XZ, _COMPRESSED.format("unxz")),
    (_ZSTD, _COMPRESSED.format("unzstd")),
    (b"\xff\xd8\xff", _IMAGE),
    (b"\x89PNG", _IMAGE),
    (b"LZIP", _COMPRESSED.format("lzip -d")),
    (b"\x04\x22\x4d\x18", _COMPRESSED.format("lz4 -d")),
    (b"PK\x03\x04", "is a zip file, not a tar: repack it as an uncompressed tar"),
    (b"version https://git-lfs", "is a git-lfs pointer, not the tar itself: run git lfs pull"),
    (b"<", "is not a tar but looks like HTML or XML (a failed download?): download it again"),
)

# Most bytes of a member of a stream, which is held whole (the largest image takes half of it as PPM), and of
# an extended header, which tarfile reads whole.
_LARGEST_STREAMED, _LARGEST_EXTENDED = 1 << 30, 16 << 20
# Bytes after the end of a tar: most programs fill up records of 10 KiB.
_MOST_PADDING = 20 << 10
_EXTENDED_KINDS = (b"x", b"g", b"X", b"L", b"K")

_T = TypeVar("_T")


def grouped(members: Iterable[tuple[str, _T]], path: object) -> Iterator[tuple[str, dict[str, _T]]]:
    """Group members (name, value) into samples (key, {lowercase extension: value})."""
    current: str | None = None
    sample: dict[str, _T] = {}
    ignored = ""
    for name, value in members:
        match = _KEY_AND_EXTENSION.match(name)
        if match is None or IGNORED.match(name):
            ignored = ignored or _warn_of_ignored(name, path)
            continue
        key, extension = match[1], match[2].lower()
        if key != current:
            if current is not None:
                yield current, sample
            current, sample = key, {}
        if extension in sample:
            raise ShardError(
                f"shard {path}: key {key!r} has two members {extension!r}. "
                "Write each member once; a key ends at the first dot of the file name."
            )
        sample[extension] = value
    if current is not None:
        yield current, sample


def _warn_of_ignored(name: str, path: object) -> str:
    """Warn of an image in a folder that webdataset ignores, and return its name; "" for another member."""
    if "/" not in name or not is_image_name(name.lower()):
        return ""
    warn(
        f"shard {path}: {name!r}, and whatever else is in a folder of the form __NAME__, is ignored, as by "
        "webdataset: give that folder another name in the tar"
    )
    return name


def regular_members(file: BinaryIO, path: object, tar_nbytes: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, offset and size (bytes) of all regular members from where the file is.

    Raises ShardError if the tar is not complete.
    """
    begin = file.tell()
    head = file.read(32)
    file.seek(begin)
    if not head:
        raise ShardError(f"shard {path} is empty (0 bytes). Write or download it again.")
    try:
        with tarfile.open(
            fileobj=file, mode="r:", tarinfo=_Bounded, encoding="utf-8", errors="surrogateescape"
        ) as tar:
            while (member := _next(tar, path)) is not None:
                if not member.isreg():
                    _check_no_link(member, path)
                    continue
                _check_not_sparse(member, path)
                if member.size < 0 or member.offset_data + member.size > tar_nbytes:
                    raise ShardError(
                        f"shard {path} is truncated or damaged: the header of {member.name!r} has "
                        f"{member.size} bytes at {member.offset_data}, but the file ends at {tar_nbytes}. "
                        "Copy or download it again."
                    )
                yield member.name, member.offset_data, member.size
            end = tar.offset
    except _BROKEN_TAR as error:
        if what := _other_format(head):
            raise ShardError(f"shard {path} {what}.") from error
        raise ShardError(
            f"shard {path} is not a complete tar ({error}). It has another format, or is truncated or "
            "damaged: write or download it again."
        ) from error
    # tarfile takes a broken header after the first member for the end of the tar: check that it is the end.
    file.seek(end)
    block = file.read(BLOCK)
    if len(block) < BLOCK:
        raise ShardError(
            f"shard {path} is truncated: it ends at byte {tar_nbytes} without the end-of-archive block. "
            "Copy or download it again."
        )
    if any(block):
        raise ShardError(f"shard {path} is damaged: no tar header at byte {end}. Copy or download it again.")
    if not _is_padding(file, path):
        raise ShardError(
            f"shard {path} continues after its end-of-archive block at byte {end} (tars joined with "
            "cat?); readers would stop there. Use separate tars, or join them with tar --concatenate."
        )


def header_end(extension: str) -> bytes:
    """Return how the name of a member with that extension (in lower case) ends in most headers."""
    return f".{extension}\0".encode("utf-8", "surrogateescape")


def is_member(tar: bytes | memoryview, offset: int, nbytes: int, key: bytes, end: bytes) -> bool:
    """Check by its headers that the data at an offset is the member KEY.EXTENSION.

    False also for a good member with more than 1 MB of extended headers.

    Args:
        tar: The file.
        offset: Place of the member's data.
        nbytes: Size of the member.
        key: Key of the sample.
        end: ``header_end`` of the member.
    """
    header = bytes(tar[max(0, offset - BLOCK) : offset])
    try:
        # Nearly all headers, in a third of the time.
        if header[135:136] in b"\0 " and int(header[124:135], 8) == nbytes and header.startswith(key + end):
            return True
    except ValueError:
        pass
    return len(header) == BLOCK and any(
        size == nbytes and name.startswith(key + b".") and header_end(_lower(name[len(key) + 1 :])) == end
        for name, size in _names_and_sizes(tar, offset, header)
    )


def _lower(extension: bytes) -> str:
    return extension.decode("utf-8", "surrogateescape").lower()


def _names_and_sizes(
    tar: bytes | memoryview, offset: int, header: bytes
) -> Iterator[tuple[bytes, int | None]]:
    """Yield possible names of the data at offset, and its size: of its header, then of extended headers."""
    name, prefix = (header[start:stop].partition(b"\0")[0] for start, stop in ((0, 100), (345, 500)))
    size = _number(header[124:136])
    yield name, size
    yield b"%b/%b" % (prefix, name), size
    records: dict[bytes, bytes] = {}
    for kind, content in _extended(tar, offset - BLOCK):
        if kind == b"L":
            records.setdefault(b"path", content.partition(b"\0")[0])
            continue
        position, own = 0, {}
        while record := _PAX_RECORD.match(content, position):
            stop = position + int(record[1])
            own[record[2]] = content[record.end() : stop - 1]
            position = max(stop, record.end())
        records = own | records
    if b"size" in records:
        size = int(records[b"size"]) if records[b"size"].isdigit() else None
    for one in (records[b"path"],) if b"path" in records else (name, b"%b/%b" % (prefix, name)):
        yield one, size


def _number(field: bytes) -> int | None:
    """Parse a number of a header as tarfile does: octal digits that may end early, or base 256."""
    if field[0] in (0x80, 0xFF):
        return int.from_bytes(field[1:], "big") - (256**11 if field[0] == 0xFF else 0)
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return None


def _extended(tar: bytes | memoryview, end: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield kind and content of the pax and GNU headers that end at `end`, the last one first."""
    blocks = 1
    for _ in range(_EXTENDED):
        start = end - (blocks + 1) * BLOCK
        if start < 0:
            return
        blocks += 1
        if tar[start + 257 : start + 262] != b"ustar":
            continue
        header = bytes(tar[start : start + BLOCK])
        nbytes = _number(header[124:136])
        if header[156:157] in (b"x", b"L") and nbytes and -(-nbytes // BLOCK) == blocks - 1:
            yield header[156:157], bytes(tar[start + BLOCK : start + BLOCK + nbytes])
            end, blocks = start, 1


def streamed_members(stream: BinaryIO, url: str) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of all regular members of a tar, or compressed tar, that is read once, forwards.

    Raises tarfile.ReadError, or the decompressor's errors, if the tar is not complete; ShardError, with the
    URL, for a hard link that would lose its content, and for members that are sparse or have more than 1 GiB.
    """
    begun = _Begun(stream)
    file: Any = _decompressed(begun)
    try:
        opened = tarfile.open(  # noqa: SIM115 (closed below)
            fileobj=file, mode="r|", tarinfo=_Strict, encoding="utf-8", errors="surrogateescape"
        )
    except tarfile.ReadError as error:  # of the first header
        what = _other_format(begun.head) if file is begun else None
        if what is not None and what.startswith("is compressed"):
            raise tarfile.ReadError(
                "it is compressed in a format that is not read: give the command that decompresses it, such "
                "as 'pipe:zstd -dc FILE'"
            ) from error
        if what is not None:
            raise tarfile.ReadError(f"it {what.partition(':')[0]}") from error
        raise
    ignored = ""
    with opened as tar:
        while (member := _next(tar, url)) is not None:
            if not member.isreg():
                _check_no_link(member, url)
            elif IGNORED.match(member.name) is not None:
                ignored = ignored or _warn_of_ignored(member.name, url)
            else:
                _check_not_sparse(member, url)
                if member.size > _LARGEST_STREAMED:
                    raise ShardError(
                        f"shard {url}: {member.name!r} has {member.size} bytes, and in streams "
                        f"at most {_LARGEST_STREAMED}: a member is held in memory. Leave it out of the "
                        "shard, or read a local copy of the shard with an index."
                    )
                content = tar.extractfile(member)
                assert content is not None
                yield member.name, content.read()
        assert tar.fileobj is not None
        if not _is_padding(tar.fileobj, url):
            raise tarfile.ReadError(
                "it continues after its end-of-archive block (tars joined with cat?); readers stop there"
            )


class _Begun:
    """A stream, and the first bytes of it."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.head = stream, b""
        while len(self.head) < _HEAD and (more := stream.read(_HEAD - len(self.head))):
            self.head += more
        self._left = self.head

    def read(self, nbytes: int) -> bytes:
        begin, self._left = self._left[:nbytes], self._left[nbytes:]
        return begin or self._stream.read(nbytes)


class _Decompressed:
    """What decompresses a stream: all of its parts, of which tarfile would read the first alone."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def read(self, nbytes: int) -> bytes:
        try:
            content: bytes = self._file.read(nbytes)
        except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise tarfile.ReadError(f"it is truncated or damaged: {error}") from error
        return content


def _decompressed(begun: Any) -> Any:
    if begun.head.startswith(b"\x1f\x8b"):
        return _Decompressed(gzip.GzipFile(fileobj=begun))
    if begun.head.startswith(b"BZh"):
        return _Decompressed(bz2.BZ2File(begun))
    return _Decompressed(lzma.LZMAFile(begun)) if begun.head.startswith((_XZ, _LZMA)) else begun


def _other_format(head: bytes) -> str | None:
    """Return what a file that is not a tar is, by its first bytes, and what to do; None if unknown."""
    return next((what for magic, what in _OTHER_FORMATS if head.lstrip().startswith(magic)), None)


def _is_padding(file: Any, path: object) -> bool:
    """Whether the rest of a tar, after its end-of-archive block, is zero. Warns if it is long."""
    length = 0
    for rest in iter(lambda: file.read(1 << 20), b""):
        if rest.count(0) < len(rest):
            return False
        length += len(rest)
    warn_of_padding(length, path)
    return True


def warn_of_padding(length: int, path: object) -> None:
    """Warn of many zero bytes after the end-of-archive block of a tar."""
    if length > _MOST_PADDING:
        warn(
            f"shard {path} has {length} zero bytes after its end: it may be a download that was not "
            "finished, and lack samples. Compare it with its source; a tar of large records, as of tar "
            "--blocking-factor, is in order"
        )


class _Bounded(tarfile.TarInfo):
    """Raises for extended headers that are too large, which tarfile would read whole.

    Since a security release of each Python, tarfile parses headers by ``_frombuf``, before by ``frombuf``.
    """

    is_checked = False

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Any:
        return cls._checked(buf, lambda: super(_Bounded, cls).frombuf(buf, encoding, errors))

    @classmethod
    def _frombuf(cls, buf: Any, encoding: str, errors: str, **options: Any) -> Any:
        parse = super()._frombuf  # type: ignore[misc]
        return cls._checked(buf, lambda: parse(buf, encoding, errors, **options))

    @classmethod
    def _checked(cls, buf: Any, parse: Callable[[], Any]) -> Any:
        header = parse()
        if header.type in _EXTENDED_KINDS and header.size > _LARGEST_EXTENDED:
            raise tarfile.ReadError(f"an extended header has {header.size} bytes")
        header.is_checked = True
        return header


class _Strict(_Bounded):
    """Raises for damaged or cut headers after the first, which tarfile takes for the end of the tar."""

    @classmethod
    def _checked(cls, buf: Any, parse: Callable[[], Any]) -> Any:
        try:
            return super()._checked(buf, parse)
        except tarfile.HeaderError as error:
            if len(buf) == BLOCK and not any(buf):
                raise
            what = f"damaged: {error}" if len(buf) == BLOCK else "truncated: no end-of-archive block"
            raise tarfile.ReadError(f"it is {what}") from error


def _next(tar: tarfile.TarFile, path: object) -> tarfile.TarInfo | None:
    """Return the next member, which tarfile does not keep: they take 2 kB each, too much for millions."""
    member = tar.next()
    tar.members = []  # type: ignore[attr-defined]
    if isinstance(member, _Bounded) and not member.is_checked:
        raise ShardError(
            f"shard {path}: the tarfile module of Python {sys.version.split()[0]} parses headers in a way "
            "that tarpeg does not know, and damage would not be found. Use an older Python, or report this."
        )
    return member


def _check_not_sparse(member: tarfile.TarInfo, path: object) -> None:
    if member.issparse():
        raise ShardError(f"shard {path}: {member.name!r} is stored sparse. Repack without --sparse.")


def _check_no_link(member: tarfile.TarInfo, path: object) -> None:
    """Refuse a hard link that belongs to a sample: the sample would lose that member's content."""
    if member.islnk() and _KEY_AND_EXTENSION.match(member.name) and not IGNORED.match(member.name):
        raise ShardError(
            f"shard {path}: {member.name!r} is stored as a hard link to {member.linkname!r}, without content "
            "of its own, as tar does with files that share one. Write the tar with --hard-dereference."
        )

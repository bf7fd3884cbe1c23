"""Errors and the per-image status. May be imported by every room."""

from __future__ import annotations

import enum


class DecodeError(ValueError):
    """An image that cannot be decoded. The message names the reason, and shard and key where known."""


class ShardError(RuntimeError):
    """A shard that is missing, broken or not what was asked for. The message names the file."""


class CacheError(ShardError):
    """A cache that cannot be built, or is not whole. The message names the folder or file, and what to do."""


class BuildError(RuntimeError):
    """The native operators could not be compiled or loaded. The message holds the compiler's words."""


class Status(enum.IntEnum):
    """What became of one image of a batch; the same numbers as ``enum class Status`` in native/status.h."""

    OK = 0
    EMPTY = 1  # no bytes at all
    NOT_AN_IMAGE = 2  # neither JPEG nor PPM: another format, or no image
    TRUNCATED = 3  # the data ends before the image does
    CORRUPT = 4  # the header or the entropy-coded data is damaged
    UNSUPPORTED = 5  # a JPEG that Pillow would refuse too: 12 bits, lossless, two components
    TOO_LARGE = 6  # more pixels than max_pixels

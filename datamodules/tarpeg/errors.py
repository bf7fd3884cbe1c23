"""Exceptions, warnings, checks of arguments, and the status of one image. Every room may import them."""

from __future__ import annotations

import enum
import functools
import inspect
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, TypeVar


class DecodeError(ValueError):
    """An image cannot be decoded. The message has the reason and, if available, shard and key.

    Example:
        >>> tarpeg.decode_crop(jpeg[:300], top=0, left=0, height=64, width=64)
        Traceback (most recent call last):
        ...
        tarpeg.errors.DecodeError: ...
    """


class ShardError(RuntimeError):
    """A shard is missing, damaged or not as required. The message has its path.

    Example:
        >>> split = tarpeg.Split(tmp / "train-*.tar", tarpeg.RandomCrop(96))
        >>> tarpeg.ShardDataModule(train=split).train_dataloader()
        Traceback (most recent call last):
        ...
        tarpeg.errors.ShardError: ...
    """


class SamplesError(ShardError, ValueError):
    """An argument does not fit the samples of the shards, such as a subset of others."""


class CacheError(ShardError):
    """A cache cannot be built, or is incomplete. The message has the folder or file, and a remedy.

    Example:
        >>> tarpeg.verify_cache(tmp)
        Traceback (most recent call last):
        ...
        tarpeg.errors.CacheError: ...
    """


class BuildError(RuntimeError):
    """The native operators cannot be compiled or loaded. The message has the compiler's output.

    Example:
        >>> try:
        ...     tarpeg.image_sizes([jpeg])  # the first operator loads the library
        ... except tarpeg.BuildError as error:
        ...     print("install a compiler and libjpeg-turbo's headers:", error)
        tensor([[400, 600]], dtype=torch.int32)
    """


class ResumeError(ValueError):
    """A checkpoint does not fit the data. The message has what differs.

    Example:
        >>> loader = tarpeg.Loader(tarpeg.Split(shards, tarpeg.RandomCrop(96)), batch_size=8, workers=0)
        >>> loader.load_state_dict({"epoch": 0})
        Traceback (most recent call last):
        ...
        tarpeg.errors.ResumeError: ...
    """


class Status(enum.IntEnum):
    """Result of decoding one image of a batch, as ``decode_batch`` returns it: 0 is OK.

    The values are those of ``enum class Status`` in native/base/status.h.

    Example:
        >>> boxes = torch.tensor([[0, 0, 64, 64]] * 2, dtype=torch.int32)
        >>> broken = torch.zeros(10, dtype=torch.uint8)
        >>> images, status = tarpeg.decode_batch([jpeg, broken], boxes, size=64)
        >>> [tarpeg.Status(value).name for value in status.tolist()]
        ['OK', 'NOT_AN_IMAGE']
    """

    OK = 0
    EMPTY = 1  # no bytes
    NOT_AN_IMAGE = 2  # neither JPEG nor PPM nor packed image
    TRUNCATED = 3  # the data ends before the image does
    CORRUPT = 4  # the header or the entropy-coded data is damaged
    UNSUPPORTED = 5  # such as a JPEG of 12 bits, a TIFF of floats: Pillow refuses or clips it
    TOO_LARGE = 6  # more pixels than max_pixels
    LATER_VERSION = 7  # a packed image that a later tarpeg made
    NOT_GATHERED = 8  # neither tiled nor packed: gather_tiles leaves it to decode_batch


_FEW_BAD = 10


def allowed_bad(max_bad: float, samples: float) -> float:
    """Return the largest number of undecodable images that is no error.

    Args:
        max_bad: Largest fraction of undecodable images. 0 allows none; otherwise ten are always allowed, so
            that a small data set does not fail at its first bad file.
        samples: Number of images.
    """
    return max(max_bad * samples, _FEW_BAD) if max_bad else 0.0


def similar(given: object, known: Iterable[str], shown: Callable[[str], str] = repr) -> str:
    """Return a question for messages about a misspelt name: the known name most like it; "" if none is."""
    near = get_close_matches(str(given), [*known], 1)
    return f"; did you mean {shown(near[0])}?" if near else ""


def check_integer(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    of: object = "",
    hint: str = "",
) -> None:
    """Raise ValueError unless the value of an argument is an integer, but no bool, in low..high.

    Args:
        name: Name of the argument.
        value: Its value.
        low: The smallest.
        high: The largest.
        of: Object whose class has the argument, if its name alone is not clear.
        hint: End of the message.
    """
    if not isinstance(value, bool) and isinstance(value, Integral) and low <= int(value) <= high:
        return
    limits = f" of at least {low}" if low > -math.inf else ""
    if high < math.inf:
        limits = f" in {low}..{high}"
    raise ValueError(f"{_named(name, value, of)} must be an integer{limits}{hint}")


def check_probability(name: str, value: Any, *, of: object = "") -> None:
    """Raise ValueError unless the value of an argument is a number in 0..1; ``of``: see check_integer."""
    is_number = isinstance(value, Real) and value is not True
    if not is_number or not 0 <= value <= 1:
        raise ValueError(f"{_named(name, value, of)} must be a probability in 0..1")


def _named(name: str, value: object, of: object) -> str:
    return f"{name}={value!r}" + (f" of {type(of).__name__}" if of != "" else "")


_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def explains_arguments(remedies: Mapping[str, str]) -> Callable[[_Callable], _Callable]:
    """Decorate a class or function: add a remedy to its TypeError for an unknown argument.

    The remedy is that of ``remedies``, or a similar name. ``inspect.signature`` sees the same signature.
    """

    def decorated(kind: Any) -> Any:
        is_class = isinstance(kind, type)
        call = kind.__init__ if is_class else kind
        known = [*inspect.signature(call).parameters][is_class:]

        @functools.wraps(call)
        def checked(*args: Any, **given: Any) -> Any:
            for name in given:
                if name not in known:
                    hint = f"; {remedies[name]}" if name in remedies else similar(name, known)
                    raise TypeError(f"{kind.__name__}() has no argument {name!r}{hint}")
            return call(*args, **given)

        if not is_class:
            return checked
        kind.__init__ = checked
        return kind

    return decorated


_warned: dict[Any, Any] = {}  # with which Python shows a warning of one text once, if filters say so
_warning = threading.RLock()  # held while the format of all warnings is another one
os.register_at_fork(after_in_child=lambda: globals().update(_warning=threading.RLock()))


def warn(text: str) -> None:
    """Issue a UserWarning in the name of tarpeg: about data, not about the line that iterates."""
    with _warning:
        _warn(text)


def _warn(text: str) -> None:
    shown = warnings.formatwarning

    def without_line(message: Any, category: Any, filename: str, lineno: int, line: Any = None) -> str:
        if filename != "tarpeg":  # of another thread
            return shown(message, category, filename, lineno, line)
        return f"{filename}: {category.__name__}: {message}\n"

    try:
        warnings.formatwarning = without_line
        warnings.warn_explicit(text, UserWarning, "tarpeg", 0, registry=_warned)
    finally:
        warnings.formatwarning = shown

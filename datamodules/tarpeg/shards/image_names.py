"""Which members of a sample are its images, if it has several: a list of extensions, or a pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from .pillow import IMAGE_EXTENSIONS, is_image_name
from .source import plain

# Formats that the codecs of a cache write. "jpg" is the last: next to 0.png, which became 0.ppm, there may be
# an image 0.jpg; and it is not among those that a pattern takes for another format.
_STORED = ("tpj", "ppm", "jpg")
_STORED_OF_PATTERN = ("tpj", "ppm")
PACKED = "tpj"  # of no other program: outside of a cache, left.ppm and left.jpg are never left.png
_MAGIC = re.compile(r"[*?\[]")

ImageNames = Sequence[str] | str


@dataclass(frozen=True)
class Pattern:
    """A pattern of extensions, such as "*.jpg"; called with one, it returns whether that is an image of it.

    "left.tpj", which a cache has in place of "left.jpg", matches as that does.

    Args:
        text: The pattern.
        is_cached: Whether the images may be those of a cache: "left.ppm" may then have been "left.jpg", too.
    """

    text: str
    is_cached: bool = True

    def __call__(self, extension: str) -> bool:
        """Return whether an extension is an image that matches."""
        return any(self._sources(extension))

    def _sources(self, extension: str) -> Iterator[str]:
        """Yield the extensions that match and may be the one that an image had in its source."""
        if not is_image_name(extension):
            return
        stem, dot, kind = extension.rpartition(".")
        is_renamed = kind == PACKED or (self.is_cached and kind in _STORED_OF_PATTERN)
        for each in IMAGE_EXTENSIONS if is_renamed else (kind,):
            name = f"{stem}{dot}{each}"
            if fnmatchcase(name, self.text) or fnmatchcase(f".{name}", self.text):
                yield name

    def chosen(self, extensions: Iterable[str]) -> list[str]:
        """Return the images among the members of a sample, in natural order: 0, 1, 2, 10."""
        return list(_chosen(self, tuple(extensions)))


@lru_cache(maxsize=4096)  # many samples have the same members
def _chosen(pattern: Pattern, extensions: tuple[str, ...]) -> tuple[str, ...]:
    # 0.tpj next to 0.png was not 0.png, but 0.jpg.
    others = {name: {*extensions} - {name} for name in extensions}
    found = [name for name in extensions if any(each not in others[name] for each in pattern._sources(name))]
    return tuple(sorted(found, key=_natural))


def _natural(extension: str) -> tuple[list[Any], str]:
    """Return what sorts extensions by the numbers in them, and then by their text."""
    stem, dot, kind = extension.rpartition(".")
    parts: list[Any] = re.split("([0-9]+)", stem)
    source = f"{stem}{dot}jpg" if kind == "tpj" else extension  # a cache keeps the order
    return [int(part) if place % 2 else part for place, part in enumerate(parts)], source


def stored_names(name: str, *, is_cached: bool = True) -> list[str]:
    """Return the extensions under which an image may be: its own, then those that a cache gives it.

    ``is_cached``: Whether it may be that of a cache; otherwise it may be packed, and nothing else.
    """
    stem, dot, _ = name.rpartition(".")
    kinds = _STORED if is_cached else (PACKED,)
    return list(dict.fromkeys([name, *(f"{stem}{dot}{kind}" for kind in kinds)]))


def listed(images: ImageNames) -> tuple[str, ...]:
    """Return the extensions of a list of them, in lower case, without dots; () for a pattern."""
    if isinstance(images, str):
        return () if _MAGIC.search(images) else (plain(images),)
    return tuple(map(plain, images))


def pattern_of(images: ImageNames) -> Pattern | None:
    """Return the pattern of ``image=``; None for a list."""
    return Pattern(images.lower()) if isinstance(images, str) and _MAGIC.search(images) else None


def keeps_names(images: ImageNames) -> bool:
    """Return whether images that a cache makes JPEGs keep their names, as the pattern takes no JPEGs."""
    pattern = pattern_of(images)
    return pattern is not None and not fnmatchcase("jpg", pattern.text.rpartition(".")[2])


def plain_list(images: ImageNames) -> list[str]:
    """Return ``images=`` as a list of extensions, or of one pattern."""
    pattern = pattern_of(images)
    return list(listed(images)) if pattern is None else [pattern.text]


def check_images(name: str, images: Any) -> None:
    """Raise ValueError unless an argument of that name is a pattern, or a list of extensions of images."""
    is_list = isinstance(images, Sequence) and not isinstance(images, (str, bytes))
    given: list[Any] = list(images) if is_list else [images]
    if isinstance(images, str) and pattern_of(images) is not None:
        kind = images.rpartition(".")[2].lower()
        if any(fnmatchcase(each, kind) for each in IMAGE_EXTENSIONS):
            return
        raise ValueError(f"{name}={images!r} must end in an extension of images, such as '*.jpg'{_kinds()}")
    for each in given:
        if isinstance(each, str) and _MAGIC.search(each):
            raise ValueError(f"{name}={images!r}: {each!r} is a pattern; give it alone: {name}={each!r}")
        if not isinstance(each, str) or not is_image_name(plain(each)):
            raise ValueError(
                f"{name}={images!r} must be extensions of images, such as ['left.jpg', 'right.jpg'], or a "
                f"pattern, such as '*.jpg'; {each!r} is neither{_kinds()}"
            )
    names = [plain(each) for each in given]
    if not names or len({*names}) < len(names):
        what = "is empty" if not names else "has one twice"
        raise ValueError(f"{name}={images!r} {what}: give the extension of each image once")


def _kinds() -> str:
    return f" ({', '.join(IMAGE_EXTENSIONS)})"

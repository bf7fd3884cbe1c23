"""A source of samples by number: the public protocol, and what all sources share.

Shards, folders of images and streams implement it, and users implement it for their own data.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..errors import ShardError
from .pillow import IMAGE_EXTENSIONS, header_sizes, image_extension, is_image_name

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

LONGEST = 64
"""Largest size of a label, in bytes."""
_INTEGER = re.compile(rb"\s*[+-]?[0-9]+\s*")
_LIMIT = 1 << 63
_MOST_KEYS = 1000  # of a source without an identity of its own that are hashed

_LABEL = (
    "Write its label as KEY.cls; or give Split(target=...) the extension of the member with the label, or "
    "None if there are no labels."
)


@runtime_checkable
class Source(Protocol):
    """Samples numbered ``0..len-1``, each with a key and members: its encoded image, label and others.

    ``Split(source)`` takes an object of your own that has the first four methods. All others have a default,
    also if the object is not a subclass: a source overrides those that it can answer faster.

    Worker processes get a copy of the source: it must pickle if they are not forked, and open files when they
    are first read, not before. Several threads may read at the same time. The same number must always be the
    same sample, otherwise no epoch can be repeated. A member that cannot be read is a ``tarpeg.ShardError``.

    Example:
        >>> class InMemory(tarpeg.Source):
        ...     def __init__(self, images, labels):
        ...         self.images_and_labels = list(zip(images, labels))
        ...     def __len__(self):
        ...         return len(self.images_and_labels)
        ...     def keys(self, ids):
        ...         return [f"sample{id}" for id in ids]
        ...     def members(self, ids, extension):
        ...         rows = [self.images_and_labels[id] for id in ids]
        ...         contents = [{"jpg": image, "cls": str(label).encode()} for image, label in rows]
        ...         return [content.get(extension) for content in contents]
        ...     def extensions(self, id):
        ...         return ["jpg", "cls"]
        >>> source = InMemory([bytes(jpeg.numpy())] * 4, labels=[3, 1, 4, 1])
        >>> split = tarpeg.Split(source, crop=tarpeg.RandomResizedCrop(224))
        >>> data = tarpeg.ShardDataModule(train=split, batch_size=4, workers=0)
        >>> next(iter(data.train_dataloader())).image.shape
        torch.Size([4, 3, 224, 224])
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def keys(self, ids: npt.ArrayLike) -> list[str]:
        """Return the keys of the samples ids [B]: their names in errors and in batches with keys."""
        ...

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
        """Read the members of the samples ids [B] of that extension, such as "cls"; None for a missing one.

        The extension is in lower case, without a dot.
        """
        ...

    def extensions(self, id: int) -> list[str]:
        """Return the extensions of a sample's members, in lower case, without the dot."""
        ...

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:
        """Read the encoded images of the samples ids [B]: uint8 [n] each, which are never written to.

        Default: the member with the first of the extensions tpj, jpg, jpeg, png, webp, bmp, tif, tiff, ppm,
        gif, avif that the sample has. Raises ``ShardError`` for a sample without any.
        """
        return _images(self, np.asarray(ids))

    def member_images(self, ids: npt.ArrayLike, extension: str) -> list[Tensor | None]:
        """Read images as ``images``, in the members of that extension; None for samples without.

        For samples with several images, ``Split(image=...)``. Default: copies of ``members()``.
        """
        return [None if each is None else _tensor(each) for each in self.members(ids, extension)]

    def count_members(self, is_counted: Callable[[str], bool]) -> npt.NDArray[np.int64]:
        """Return how many members of each sample have an extension for which the function is true: [len].

        For a pattern in ``Split(image=...)``. Default: by ``extensions()`` of all samples.
        """
        counts = [sum(map(is_counted, self.extensions(id))) for id in range(len(self))]
        return np.array(counts, np.int64)

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:
        """Read the labels of the samples ids [B]: int64 [B].

        Default: integers in ASCII digits, in the members of that extension. Raises ``ShardError`` for a
        sample without one.
        """
        rows, name = np.asarray(ids), plain(extension)
        return integers(self, rows.tolist(), name, self.members(rows, name))

    def sizes(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:
        """Return (height, width) of the images of the samples ids [B], upright: int32 [B, 2], in pixels.

        (0, 0) for an image that cannot be decoded. Default: read from the headers of the files, by Pillow if
        they are not JPEG, packed images or binary PPM.
        """
        return header_sizes(self.images(ids))

    def shard(self, id: int) -> str | Path:
        """Return the path or URL of the file with the sample, for messages. Default: the type's name."""
        return type(self).__name__

    def classes(self) -> list[str] | None:
        """Return the names of the classes by label; None (the default) if they are unknown."""
        return None

    def check_unchanged(self, ids: npt.ArrayLike) -> None:
        """Raise ``ShardError`` if a file with one of the samples has changed. Called after they were read.

        Default: nothing is checked.
        """
        return

    def identity(self) -> str:
        """Return a text that is another one for other data: processes compare it when loaders are created.

        No samples are read for it. Default: a hash of the length and of at most 1000 keys.
        """
        ids = np.unique(np.linspace(0, max(len(self) - 1, 0), min(len(self), _MOST_KEYS), dtype=np.int64))
        return digest([str(len(self)), *self.keys(ids)])

    def identities(self) -> list[str]:
        """Return a text for each file, in order, that is another one for other data: resuming compares them.

        Messages show them. Default: ``identity()`` alone.
        """
        return [self.identity()]

    def will_need(self, ids: npt.ArrayLike) -> None:
        """Ask the disk to read the images of the samples ids [B], and return at once. Default: nothing."""
        return

    @property
    def total_bytes(self) -> int:
        """Size of all files together; if they do not fit in memory, ``will_need`` is called. Default: 0."""
        return 0

    @property
    def has_labels(self) -> bool:
        """Whether samples have labels. Default: True."""
        return True

    @property
    def cached_images(self) -> tuple[str, ...] | None:
        """``images=`` of the build of a cache, whose images may have other extensions than in its source.

        Default: None, the samples are not those of a cache; packed images, ``tpj``, are found in any case.
        """
        return None


def is_source(given: object) -> TypeIs[Source]:
    """Return whether an object has the four methods that a ``Source`` must have."""
    names = ("__len__", "keys", "members", "extensions")
    return not isinstance(given, type) and all(callable(getattr(given, name, None)) for name in names)


METHODS = [name for name, part in vars(Source).items() if not name.startswith("_") and callable(part)]
"""Names of the methods of a source, beside ``len``."""
_CHECKED = ("keys", "members", "images", "labels", "sizes", "extensions")


def completed(given: Any) -> Source:
    """Return an object with the methods of ``is_source`` as a source with all of them.

    Raises ValueError if an attribute takes the place of a method.
    """
    if isinstance(given, Completed):
        return given
    for name in METHODS:
        if not callable(found := getattr(given, name, len)):
            raise ValueError(
                f"the source {type(given).__name__} has the attribute {name!r}, a {type(found).__name__}, in "
                f"place of the method {name}() of tarpeg.Source: give the attribute another name, or write "
                "the method"
            )
    return Completed(given)


class Completed(Source):
    """A source of the user: its methods, defaults for the others, and checks of what they return.

    ``total_bytes``, ``has_labels`` and ``cached_images`` may be methods, too. Other attributes are those of
    the user's object.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._take_methods()

    def _take_methods(self) -> None:
        for name in METHODS:
            own = getattr(self._inner, name, None)
            is_default = getattr(type(self._inner), name, None) is getattr(Source, name)
            if callable(own) and not is_default and name not in _CHECKED:
                setattr(self, name, own)

    def __getstate__(self) -> dict[str, Any]:
        return {"_inner": self._inner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._inner = state["_inner"]
        self._take_methods()

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return repr(self._inner)

    def __len__(self) -> int:
        return len(self._inner)

    def keys(self, ids: npt.ArrayLike) -> list[str]:  # noqa: D102 (here and below: as in Source)
        found = self._inner.keys(ids)
        return self._listed("keys", ids, found, (str,), "texts")

    def members(self, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:  # noqa: D102
        found = self._inner.members(ids, extension)
        kinds = (bytes, bytearray, memoryview, type(None))
        values = self._listed(f"members(ids, {extension!r})", ids, found, kinds, "bytes or None")
        return [bytes(value) if isinstance(value, (bytearray, memoryview)) else value for value in values]

    def images(self, ids: npt.ArrayLike) -> list[Tensor]:  # noqa: D102
        import torch

        found = self._own("images")(ids)
        images = self._listed("images", ids, found, (torch.Tensor,), "uint8 tensors [n]")
        for image in images:
            if image.dtype != torch.uint8 or image.ndim != 1:
                self._refuse("images", "uint8 tensors [n]", f"one {image.dtype} {list(image.shape)}")
        return images

    def labels(self, ids: npt.ArrayLike, extension: str = "cls") -> Tensor:  # noqa: D102
        import torch

        found, count = self._own("labels")(ids, extension), len(np.asarray(ids))
        if not isinstance(found, torch.Tensor):
            self._refuse("labels", f"an int64 tensor [{count}]", f"a {type(found).__name__}")
        if found.dtype != torch.int64 or tuple(found.shape) != (count,):
            self._refuse("labels", f"an int64 tensor [{count}]", f"{found.dtype} {list(found.shape)}")
        return found

    def sizes(self, ids: npt.ArrayLike) -> npt.NDArray[np.int32]:  # noqa: D102
        found, count = np.asarray(self._own("sizes")(ids)), len(np.asarray(ids))
        if found.dtype.kind not in "iu" or found.shape != (count, 2):
            self._refuse("sizes", f"integers [{count}, 2]", f"{found.dtype} {list(found.shape)}")
        return found.astype(np.int32, copy=False)

    def _own(self, name: str) -> Any:
        """Return the user's method, or the default, which calls the checked methods of this object."""
        kind = getattr(type(self._inner), name, None)
        if kind is None and hasattr(self._inner, name):
            return getattr(self._inner, name)
        is_default = kind is None or kind is getattr(Source, name)
        return functools.partial(getattr(Source, name), self) if is_default else getattr(self._inner, name)

    def _listed(
        self, method: str, ids: npt.ArrayLike, found: Any, kinds: tuple[type, ...], what: str
    ) -> list[Any]:
        count = len(np.asarray(ids))
        if isinstance(found, (str, bytes)) or not isinstance(found, Iterable):
            self._refuse(method, f"a list of {count} {what}", f"a {type(found).__name__}")
        values = list(found)
        if len(values) != count:
            self._refuse(method, f"a list of {count} {what}", f"one of {len(values)}")
        for value in values:
            if not isinstance(value, kinds):
                self._refuse(method, f"a list of {count} {what}", f"a {type(value).__name__} in it")
        return values

    def _refuse(self, method: str, expected: str, got: str) -> NoReturn:
        call = method if "(" in method else f"{method}()"
        raise ValueError(f"the source {type(self._inner).__name__}: {call} must return {expected}, got {got}")

    def extensions(self, id: int) -> list[str]:  # noqa: D102
        return list(self._inner.extensions(id))

    def shard(self, id: int) -> str | Path:  # noqa: D102
        return type(self._inner).__name__

    @property
    def total_bytes(self) -> int:  # noqa: D102
        return int(_value(self._inner, "total_bytes", 0))

    @property
    def has_labels(self) -> bool:  # noqa: D102
        return bool(_value(self._inner, "has_labels", True))

    @property
    def cached_images(self) -> tuple[str, ...] | None:  # noqa: D102
        found: tuple[str, ...] | None = _value(self._inner, "cached_images", None)
        return found


def _value(inner: Any, name: str, default: object) -> Any:
    value = getattr(inner, name, default)
    return value() if callable(value) else value


def where_of(source: Source, id: int) -> str:
    """Format shard and key of a sample, for messages."""
    return f"shard {source.shard(id)}, key {source.keys([id])[0]!r}"


def image_is(source: Source, ids: npt.ArrayLike, extension: str) -> list[bool]:
    """Whether the image of each sample is its member of that extension; False if the source has no answer."""
    if hasattr(source, "image_is"):  # shards and streams
        found: list[bool] = source.image_is(ids, extension)
        return found
    return [False] * len(np.asarray(ids))


def read_pictures(source: Source, ids: npt.ArrayLike, extension: str) -> list[bytes | None]:
    """Read members that are no images but masks, maps, ...; None for samples without, or without an image."""
    contents, are_images = source.members(ids, extension), image_is(source, ids, extension)
    return [None if is_image else each for each, is_image in zip(contents, are_images, strict=True)]


def missing(source: Source, id: int, extension: str, remedy: str = _LABEL) -> ShardError:
    """Return the error for a sample without that member, or with a picture in place of an image."""
    name, found = plain(extension), source.extensions(id)
    if image_is(source, [id], name)[0]:
        return ShardError(
            f"{where_of(source, id)}: member {name!r}, which targets= reads, is the image of this sample, "
            f"which has {found}. {_remedy(name, found)}"
        )
    why = source.why_missing(id) if hasattr(source, "why_missing") else ""  # of Shards
    return ShardError(f"{where_of(source, id)} has no member {name!r}, only {found}. {why or remedy}")


def _remedy(name: str, found: Sequence[str]) -> str:
    """Return what helps if the image of a sample with these members is a picture that targets read."""
    others = [each for each in found if each != name and is_image_name(each)]
    both = f"Split(image={name!r}) if one picture is both"
    if not others:
        return f"Write the image as KEY.jpg; {both}"
    if "." in others[0]:
        return f"Give targets= the extension {others[0]!r} if that is the picture; {both}"
    return f"Give Split(image={others[0]!r}) if that is the image; {both}"


def plain(extension: str) -> str:
    """Normalise an extension: lowercase, without the dot."""
    return extension.removeprefix(".").lower()


def integers(source: Source, ids: Iterable[int], extension: str, texts: Iterable[bytes | None]) -> Tensor:
    """Parse the texts of samples' members of that extension, None for a missing one: int64 [B].

    Raises ShardError, with shard and key, for a member that is missing or not a 64-bit integer.
    """
    import torch  # here, because the torch-free part of the package uses this module

    labels = []
    for id, text in zip(ids, texts, strict=True):
        if text is None:
            raise missing(source, id, extension)
        if not is_label(text):
            raise ShardError(
                f"{where_of(source, id)}: member {plain(extension)!r} is {label_text(text)}, not a 64-bit "
                "integer. A label is an integer in ASCII digits, such as 7."
            )
        labels.append(int(text))
    return torch.tensor(labels, dtype=torch.int64, device="cpu")


def is_label(text: bytes) -> bool:
    """Check that a label is a 64-bit integer in ASCII digits."""
    # Nearly all labels pass the first test, in a third of the time.
    return (len(text) < 19 and text.isdigit()) or (
        len(text) <= LONGEST and _INTEGER.fullmatch(text) is not None and -_LIMIT <= int(text) < _LIMIT
    )


def label_text(text: bytes) -> str:
    """Format the content of a label, for messages."""
    return repr(text[:32].decode("utf-8", "replace") + ("..." if len(text) > 32 else ""))


def digest(texts: Iterable[str]) -> str:
    """Hash texts, in their order: 32 hexadecimal digits."""
    found = hashlib.sha256()
    for text in texts:
        found.update(text.encode("utf-8", "surrogateescape") + b"\n")
    return found.hexdigest()[:32]


def _images(source: Source, ids: npt.NDArray[Any]) -> list[Tensor]:
    """Read images as members: all samples with one extension together."""
    names = []
    for id in ids.tolist():
        name = image_extension(source.extensions(id))
        if name is None:
            remedy = f"Images have an extension of {', '.join(IMAGE_EXTENSIONS)}."
            raise missing(source, id, "jpg", remedy)
        names.append(name)
    contents: dict[str, Iterator[bytes | None]] = {}
    for name in set(names):
        contents[name] = iter(source.members(ids[[name == other for other in names]], name))
    files = []
    for id, name in zip(ids.tolist(), names, strict=True):
        content = next(contents[name])
        if content is None:
            raise missing(source, id, name, "extensions() lists it, and members() does not return it.")
        files.append(_tensor(content))
    return files


def _tensor(content: bytes) -> Tensor:
    import torch

    # A copy: torch warns about memory that is not writable.
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())

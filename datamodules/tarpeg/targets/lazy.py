"""A list that is filled when it is first used: the dicts of targets, which are not needed at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

_METHODS = (
    *("__getitem__", "__setitem__", "__delitem__", "__iter__", "__reversed__", "__contains__", "__repr__"),
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__add__", "__iadd__", "__mul__", "__imul__", "__rmul__"),
    *("append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
)


class LazyList(list[Any]):
    """A list whose items are made at its first use, whatever that is, but for its length.

    A copy of it, and what it becomes when it is pickled, is a plain list.
    """

    def __init__(self, items: Iterable[Any] = ()) -> None:
        super().__init__(items)
        self._make: Callable[[], list[Any]] | None = None
        self._count = 0

    @classmethod
    def of(cls, make: Callable[[], list[Any]], count: int) -> LazyList:
        """Return a list of the ``count`` items that ``make`` will return."""
        found = cls()
        found._make, found._count = make, count
        return found

    def fill(self) -> None:
        """Make the items, if that has not been done."""
        if self._make is not None:
            items = self._make()
            self._make = None
            super().extend(items)

    def __len__(self) -> int:
        return super().__len__() if self._make is None else self._count

    def __radd__(self, other: list[Any]) -> list[Any]:
        return [*other, *self]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return list, ([*self],)


def _filling(name: str) -> Callable[..., Any]:
    own = getattr(list, name)

    def method(self: LazyList, *given: Any, **options: Any) -> Any:
        for each in (self, *given):
            if isinstance(each, LazyList):
                each.fill()
        return own(self, *given, **options)

    method.__name__ = name
    return method


for _name in _METHODS:
    setattr(LazyList, _name, _filling(_name))


def _register() -> None:
    """Let torch's trees of values, which know lists by their type, look into it."""
    from torch.utils import _pytree

    def items(values: Any) -> tuple[list[Any], None]:
        return [*values], None

    def plain(values: Iterable[Any], _: Any) -> list[Any]:
        return [*values]

    _pytree.register_pytree_node(LazyList, items, plain)


with contextlib.suppress(ImportError, AttributeError):  # it is private
    _register()

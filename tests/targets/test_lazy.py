"""LazyList: a list in every respect, whose items are made at its first use and once."""

from __future__ import annotations

import copy
import operator
import pickle

import pytest
from tarpeg.targets.lazy import LazyList
from torch.utils._pytree import tree_map

USES = {
    "item": lambda each: each[1],
    "slice": lambda each: each[:2],
    "iteration": lambda each: [*each],
    "arguments": lambda each: (lambda *given: given)(*each),
    "list": list,
    "zip": lambda each: [*zip(each, "abc", strict=True)],
    "reversed": lambda each: [*reversed(each)],
    "contains": lambda each: 2 in each,
    "equal": lambda each: operator.eq([1, 2, 3], each),
    "sum": lambda each: operator.add(each, [4]),
    "sum from the left": lambda each: operator.add([0], each),
    "extended": lambda each: [0, *each],
    "text": repr,
    "sorted": lambda each: sorted(each, reverse=True),
    "copy": copy.copy,
    "deep copy": copy.deepcopy,
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "tree": lambda each: tree_map(lambda value: value + 1, {"a": each}),
    "same class": lambda each: type(each)(value + 1 for value in each),
    "truth": bool,
}


@pytest.mark.parametrize("name", USES)
def test_any_use_is_that_of_a_list(name):
    calls = []
    lazy = LazyList.of(lambda: calls.append(1) or [1, 2, 3], 3)
    assert isinstance(lazy, list) and len(lazy) == 3 and not calls
    assert USES[name](lazy) == USES[name]([1, 2, 3])
    assert USES[name](lazy) == USES[name]([1, 2, 3])
    assert len(calls) == (name != "truth")


def test_changes_come_after_the_items():
    lazy = LazyList.of(lambda: [3, 1], 2)
    lazy.append(2)
    assert len(lazy) == 3
    lazy.sort()
    lazy += [4]
    other = [0]
    other += LazyList.of(lambda: [9], 1)
    assert (lazy, other, lazy.index(3), LazyList([5])) == ([1, 2, 3, 4], [0, 9], 2, [5])
    with pytest.raises(TypeError):
        hash(lazy)


def test_two_of_them():
    def lazy():
        return LazyList.of(lambda: [1, 2], 2)

    assert lazy() == lazy() and [lazy()] == [lazy()] and not operator.ne(lazy(), lazy())
    assert lazy() + lazy() == [1, 2, 1, 2]
    both = lazy()
    both[1:] = lazy()
    assert both == [1, 1, 2]


def test_an_error_of_the_items_is_raised():
    lazy = LazyList.of(lambda: 1 / 0, 1)
    with pytest.raises(ZeroDivisionError):
        lazy[0]


def test_an_error_while_the_items_are_made_is_not_the_end_of_them():
    calls = []

    def make():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return [1, 2]

    lazy = LazyList.of(make, 2)
    with pytest.raises(KeyboardInterrupt):
        lazy[0]
    assert len(lazy) == 2 and lazy == [1, 2]

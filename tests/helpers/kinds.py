"""What a test starts: processes, compilers, trainings, graphs. It is read from the code of the test.

The quick loop keeps one training per file, and one test of each other kind: the first one, or those with
``@pytest.mark.quick``; all others are marked slow. The kinds of a test are found in the code of its function,
of its fixtures and of the helpers that they call: no marker is needed. Of a parametrised test with
``@pytest.mark.sweep``, the quick loop keeps the first case.
"""

from __future__ import annotations

import concurrent.futures
import functools
import multiprocessing
import subprocess
import types
from collections.abc import Iterator
from typing import Any

import pytest


@functools.cache
def _starters() -> dict[int, str]:
    """What starts something, by identity, and the kind of it."""
    import lightning
    import torch
    from tarpeg.ops import compiler

    processes = (subprocess.run, subprocess.Popen, subprocess.check_output, multiprocessing.get_context)
    kinds = [(starter, "process") for starter in (*processes, concurrent.futures.ProcessPoolExecutor)]
    kinds += [(starter, "compiler") for starter in (compiler.build, compiler.build_cuda)]
    kinds += [(starter, "graph") for starter in (torch.compile, torch.library.opcheck)]
    kinds += [(lightning.Trainer, "training")]
    return {id(starter): kind for starter, kind in kinds}  # all of them live as long as their modules


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function and of the functions within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What the function's code names: its globals, and what modules among them hold, two modules deep."""
    for code in _codes(function.__code__):
        found = [function.__globals__]
        for _ in range(3):
            named = [holder[name] for holder in found for name in code.co_names if name in holder]
            yield from named
            found = [vars(thing) for thing in named if isinstance(thing, types.ModuleType)]


def _parts(thing: Any) -> list[Any]:
    """What a thing of the tests is made of, or names; nothing for what is not of the tests."""
    if isinstance(thing, types.ModuleType):  # of which torch.classes has every attribute, by an error
        return []
    if isinstance(thing, functools.partial):
        return [thing.func]
    if isinstance(thing, functools.cached_property):
        return [thing.func]
    if hasattr(thing, "__wrapped__"):  # by functools.cache, contextlib or hypothesis
        return [thing.__wrapped__]
    if not (getattr(thing, "__module__", None) or "").startswith(("helpers", "test_", "conftest", "golden")):
        return []
    if isinstance(thing, type):
        return [*vars(thing).values()]
    return [*_named(thing)] if isinstance(thing, types.FunctionType) else []


@functools.cache
def _kinds_of(function: Any) -> frozenset[str]:
    """The kinds of what a function starts."""
    kinds, seen, todo = set(), set(), [function]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = _starters().get(id(thing))
        if kind:
            kinds.add(kind)
        else:
            todo += _parts(thing)
    return frozenset(kinds)


def kinds(item: pytest.Item) -> set[str]:
    """The kinds of what a test and its fixtures start."""
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    functions = [item.function, *(found[-1].func for found in fixtures)]  # type: ignore[attr-defined]
    return {kind for function in functions for kind in _kinds_of(function)}


def _places(item: pytest.Item) -> set[object]:
    """What the quick loop has enough of with this test."""
    return {(item.path if kind == "training" else "", kind) for kind in kinds(item)}


def mark_slow(items: list[pytest.Item]) -> None:
    """Mark as slow what the quick loop leaves out."""
    kept: set[object] = set()
    for item in items:
        if item.get_closest_marker("quick"):
            kept |= _places(item)
    for item in items:
        places: set[object] = set() if item.get_closest_marker("quick") else _places(item)
        sweep: set[object] = {item.function} if item.get_closest_marker("sweep") else set()  # type: ignore[attr-defined]
        if (places and places <= kept) or (sweep and sweep <= kept):
            item.add_marker(pytest.mark.slow)
        elif not item.get_closest_marker("slow"):
            kept |= places | sweep

"""Worker processes: order, errors, and deaths."""

from __future__ import annotations

import os

import pytest
from tarpeg.errors import ShardError
from tarpeg.processes import map_in_processes


def test_results_come_in_order():
    assert list(map_in_processes(abs, range(-40, 0), 3)) == list(range(40, 0, -1))


def test_errors_are_raised_here():
    results = map_in_processes(int, ["1", "2", "x", "4"], 1)
    assert [next(results), next(results)] == [1, 2]
    with pytest.raises(ValueError, match="invalid literal"):
        next(results)


def test_a_death_is_told():
    with pytest.raises(ShardError, match="a worker process died with status 3"):
        list(map_in_processes(os._exit, [3, 3, 3], 2))


def test_an_abandoned_run_ends():
    results = map_in_processes(abs, range(1000), 2)
    assert next(results) == 0
    results.close()

"""How many jobs of a build wait at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tarpeg import processes


@pytest.mark.parametrize(("workers", "most"), [(0, 3), (1, 3), (2, 6), (3, 9)])
def test_few_jobs_wait_for_processes_of_our_own(workers, most):
    made = came = 0

    def calls():
        nonlocal made
        for number in range(50):
            made += 1
            # The one that is made now waits in no queue yet.
            assert made - came <= most + 1
            yield (-number,)

    with processes.pool(workers, 50) as pool:
        assert processes.window(pool) == most
        for _ in processes.results(pool, abs, calls(), lambda: None):
            came += 1
    assert came == 50


def test_an_executor_of_the_callers_has_more():
    with ThreadPoolExecutor(1) as mine, processes.pool(mine, 5) as pool:
        assert pool is mine and processes.window(pool) == 256

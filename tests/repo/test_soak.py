"""Training under random faults: a minute of tests/soak.py."""

from __future__ import annotations

import pytest
from helpers.forks import run_forked
from helpers.scripts import TESTS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_minute_of_random_faults_leave_every_batch_right_or_an_error_with_its_cause():
    done = run_forked(TESTS / "soak.py", SOAK_SECONDS="50")
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert "SOAK_FIRST=0: " in done.stdout

"""Warning about OpenMP's spinning threads. Container limits: tests/diagnostics/test_doctor.py."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.training import Net, module, trainer
from tarpeg import machine


@pytest.mark.parametrize(
    ("policy", "threads", "warnings"),
    [(None, 1, 1), ("PASSIVE", 1, 0), (None, 0, 0)],
    ids=["warns once", "policy is set", "no helpers"],
)
def test_spinning_threads(photos, tmp_path, monkeypatch, caplog, policy, threads, warnings):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    machine.warn_about_spinning_threads.cache_clear()
    with caplog.at_level(logging.WARNING, "tarpeg.machine"):
        for _ in range(2):
            data = module(photos, workers=0, threads=threads)
            trainer(tmp_path, max_epochs=1).fit(Net(), datamodule=data)
    assert sum("OMP_WAIT_POLICY=PASSIVE" in message for message in caplog.messages) == warnings

"""Whoever trains on a CPU is told once of OpenMP's threads, which spin on the cores that decoding needs."""

from __future__ import annotations

import logging

import pytest
import torch
from helpers.training import Net, module, trainer
from tarpeg import machine


@pytest.mark.parametrize(
    ("policy", "engine", "told"),
    [
        (None, {"workers": 0, "threads": 1}, 1),
        ("PASSIVE", {"workers": 0, "threads": 1}, 0),
        (None, {"workers": 0, "threads": 0}, 0),
    ],
)
def test_it_is_told_once(photos, tmp_path, monkeypatch, caplog, policy, engine, told):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    machine.warn_about_spinning_threads.cache_clear()
    with caplog.at_level(logging.WARNING, "tarpeg.machine"):
        for _ in range(2):
            trainer(tmp_path, max_epochs=1).fit(Net(), datamodule=module(photos, **engine))
    assert sum("OMP_WAIT_POLICY=PASSIVE" in record.getMessage() for record in caplog.records) == told

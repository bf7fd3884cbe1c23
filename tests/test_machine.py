"""Limits of containers, and the warning about OpenMP's spinning threads."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import tarpeg
import torch
from helpers.training import fitted, module
from tarpeg import machine
from tarpeg.loader.config import LoaderConfig


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
            fitted(tmp_path, module(photos, workers=0, threads=threads))
    assert sum("OMP_WAIT_POLICY=PASSIVE" in message for message in caplog.messages) == warnings


def machine_with(root: Path, cgroup: str, files: dict[str, str]) -> machine.Machine:
    """The machine with this /proc/self/cgroup and these files of /sys/fs/cgroup."""
    memory = "MemTotal:  2000000 kB\nHugePages_Total:  0\nMemAvailable:  1000 kB\n"
    groups = {f"groups/{name}": content for name, content in files.items()}
    for name, content in {"proc/self/cgroup": cgroup, "proc/meminfo": memory, **groups}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return machine.read_machine(root / "groups", root / "proc")


def test_limits_of_a_container(tmp_path, monkeypatch):
    files = {"cpu.max": "max 100000\n", "pod/cpu.max": "150000 100000\n", "pod/me/cpu.max": "max 100000\n"}
    second = machine_with(tmp_path / "2", "0::/pod/me\n", {**files, "pod/me/memory.max": "4000000000\n"})
    assert (second.core_limit, second.memory_limit) == (1.5, 4_000_000_000)
    assert (second.usable_cores, second.memory, second.memory_free) == (1, 2_048_000_000, 1_024_000)
    files = {"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    files["memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    first = machine_with(tmp_path / "1", "4:memory:/host/name\n3:cpu,cpuacct:/host/name\n", files)
    assert (first.core_limit, first.memory_limit, first.usable_cores) == (0.5, None, 1)
    none = machine_with(tmp_path / "0", "", {})
    assert (none.core_limit, none.memory_limit, none.usable_cores) == (None, None, none.cores)

    monkeypatch.setattr(machine, "read_machine", lambda: machine.Machine(64, 2.0, 1, 1, 1, 1, 0.1))
    found = tarpeg.diagnose(speed=False)
    assert found.facts["machine"]["cores"] == "64, of which the container may use 2.0"
    assert LoaderConfig().workers_and_threads == (2, 0), "as many workers as the container may use cores"

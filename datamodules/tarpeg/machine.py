"""The machine as this process sees it: cores, memory, and the limits that a container sets.

Without torch: processes that draw photographs import this, and the doctor where torch is broken.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_GROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # bytes; version 1 of cgroups writes a number near 2**63 where there is none


@dataclass(frozen=True)
class Machine:
    """What there is of it. Bytes; None where it cannot be told, or where there is no limit.

    cores: that this process may run on. core_limit: how many of them it may keep busy, as a container says.
    load: of the last minute.
    """

    cores: int
    core_limit: float | None
    memory: int | None
    memory_free: int | None
    memory_limit: int | None
    shared_free: int | None
    load: float | None

    @property
    def usable_cores(self) -> int:
        """How many threads can run at once, at least 1."""
        return self.cores if self.core_limit is None else max(1, min(self.cores, int(self.core_limit)))


def read_machine(groups: Path = _GROUPS, proc: Path = Path("/proc")) -> Machine:
    """Look around."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory(proc)
    shared = Path("/dev/shm")
    return Machine(
        cores=cores,
        core_limit=_core_limit(groups, proc),
        memory=memory.get("MemTotal"),
        memory_free=memory.get("MemAvailable"),
        memory_limit=_memory_limit(groups, proc),
        shared_free=shutil.disk_usage(shared).free if shared.is_dir() else None,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def usable_cores() -> int:
    """Count the threads that can run at once: this process's cores, as far as a container lets it."""
    return read_machine().usable_cores


def _memory(proc: Path) -> dict[str, int]:
    found = {}
    for line in _text(proc / "meminfo").splitlines():
        name, _, rest = line.partition(":")
        if rest.endswith(" kB"):
            found[name] = 1024 * int(rest.split()[0])
    return found


def _core_limit(groups: Path, proc: Path) -> float | None:
    limits = []
    for place in _places(groups, proc, ""):
        quota, _, period = _text(place / "cpu.max").partition(" ")
        if quota not in ("", "max"):
            limits.append(int(quota) / int(period))
    for place in _places(groups / "cpu", proc, "cpu"):
        quota, period = _text(place / "cpu.cfs_quota_us"), _text(place / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0:
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _memory_limit(groups: Path, proc: Path) -> int | None:
    told = [_text(place / "memory.max") for place in _places(groups, proc, "")]
    told += [_text(place / "memory.limit_in_bytes") for place in _places(groups / "memory", proc, "memory")]
    limits = [int(limit) for limit in told if limit not in ("", "max") and int(limit) < _NO_LIMIT]
    return min(limits, default=None)


def _places(root: Path, proc: Path, controller: str) -> list[Path]:
    """Return the directories whose limits hold: this process's group and all above it.

    In a container the group's name may be that of the host, under which there is nothing here.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            place = root / path.lstrip("/")
            return [place, *(above for above in place.parents if above.is_relative_to(root))]
    return [root]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@functools.cache
def warn_about_spinning_threads() -> None:
    """Tell once that OpenMP's threads, which spin while they wait, are in the way of those that decode."""
    if "OMP_WAIT_POLICY" not in os.environ:
        log.warning(
            "OpenMP's threads spin while they wait, on cores that decoding needs, so that training on a CPU "
            "may take several times as long: set OMP_WAIT_POLICY=PASSIVE in the environment, or on top of "
            "the script before torch is imported"
        )

"""Resources of this machine: cores, memory and container limits. Imports no torch."""

from __future__ import annotations

import functools
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

_CGROUPS = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60  # bytes; without a limit, version 1 of cgroups has a number near 2**63


@dataclass(frozen=True)
class Machine:
    """Resources that this process may use. Memory in bytes; None if unknown, or if there is no limit.

    Attributes:
        cores: Number of cores that this process may run on.
        core_limit: How many of them a container may keep busy, a fraction.
        memory: Memory of the machine.
        memory_free: Memory that is free.
        memory_limit: Limit of the container.
        shared_free: Free shared memory, in /dev/shm.
        load: Average load of the last minute.
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
        """Number of threads that can run at once, at least 1."""
        return self.cores if self.core_limit is None else max(1, min(self.cores, int(self.core_limit)))

    @property
    def usable_memory(self) -> int | None:
        """Physical memory within the container's limit, in bytes."""
        return min((size for size in (self.memory, self.memory_limit) if size is not None), default=None)


def read_machine(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> Machine:
    """Read CPU, memory and container limits."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory(proc)
    shared = Path("/dev/shm")
    return Machine(
        cores=cores,
        core_limit=_core_limit(cgroups, proc),
        memory=memory.get("MemTotal"),
        memory_free=memory.get("MemAvailable"),
        memory_limit=_memory_limit(cgroups, proc),
        shared_free=shutil.disk_usage(shared).free if shared.is_dir() else None,
        load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    )


def usable_cores() -> int:
    """Return the number of threads that can run at once: cores within the container's limit."""
    return read_machine().usable_cores


@functools.cache
def warn_about_spinning_threads() -> None:
    """Log once per process that OpenMP's threads spin while they wait, unless OMP_WAIT_POLICY is set."""
    if "OMP_WAIT_POLICY" not in os.environ:
        log.warning(
            "OpenMP's threads spin while they wait, on cores that decoding needs: training on a CPU may take "
            "several times as long. Set OMP_WAIT_POLICY=PASSIVE in the environment, or at the top of the "
            "script before torch is imported."
        )


def _memory(proc: Path) -> dict[str, int]:
    lines = (line.split() for line in _text(proc / "meminfo").splitlines())
    return {words[0].rstrip(":"): 1024 * int(words[1]) for words in lines if words[2:] == ["kB"]}


def _core_limit(cgroups: Path, proc: Path) -> float | None:
    quotas = [_text(folder / "cpu.max").split() for folder in _folders(cgroups, proc, "")]
    for folder in _folders(cgroups / "cpu", proc, "cpu"):
        quotas.append(f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}".split())
    # [quota, period] in microseconds; without a limit the quota is "max" or "-1".
    return min((int(q[0]) / int(q[1]) for q in quotas if len(q) == 2 and q[0].isdigit()), default=None)


def _memory_limit(cgroups: Path, proc: Path) -> int | None:
    texts = [_text(folder / "memory.max") for folder in _folders(cgroups, proc, "")]
    old = _folders(cgroups / "memory", proc, "memory")
    texts += [_text(folder / "memory.limit_in_bytes") for folder in old]
    return min((int(t) for t in texts if t.isdigit() and int(t) < _UNLIMITED), default=None)


def _folders(root: Path, proc: Path, controller: str) -> list[Path]:
    """Return the folders whose limits apply: this process's group and all groups above it.

    In a container the group's name may be the host's; no such folder exists in the container.
    """
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = root / path.lstrip("/")
            return [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return [root]


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""

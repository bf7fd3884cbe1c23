"""OpenMetrics text of a training in a file, as node_exporter's textfile collector reads it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import warn
from ..files import renamed
from .figures import Measured

if TYPE_CHECKING:
    from prometheus_client import Metric

# Seconds between two versions of the file: Prometheus asks every 15 or more.
_INTERVAL = 10.0


def check_metrics(path: object) -> None:
    """Raise ValueError for a file that the collector would not read, and ImportError without the library."""
    if not isinstance(path, (str, os.PathLike)) or Path(path).suffix != ".prom":
        raise ValueError(
            f"metrics={path!r} must be the path of a file NAME.prom: the textfile collector of node_exporter "
            "reads no others"
        )
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"metrics={os.fspath(path)!r} needs prometheus-client: pip install 'tarpeg[metrics]'"
        ) from error


class MetricsFile:
    """The file of one process of a training, which is replaced every few seconds.

    A file that cannot be written is a warning, and the training goes on without it.

    Args:
        path: Of the file; of several processes each has its own, ``NAME.rank3.prom``.
        process: Number of the process over all nodes.
        processes: Their number.

    Raises:
        ValueError: If there is no folder for it.
    """

    def __init__(self, path: str | os.PathLike[str], process: int, processes: int) -> None:
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise ValueError(f"metrics={os.fspath(path)!r}: there is no folder {str(self.path.parent)!r}")
        if processes > 1:
            self.path = self.path.with_suffix(f".rank{process}{self.path.suffix}")
        self._process = process
        self._written, self._is_broken = -math.inf, False
        self._last, self._recent = Measured(), Measured()

    def is_due(self, now: float) -> bool:
        """Return whether it was not written for some seconds, by a clock in seconds."""
        return now - self._written >= _INTERVAL and not self._is_broken

    def update(self, now: float, measured: Measured, slowest: int | None) -> None:
        """Write what was measured so far; see ``write_metrics``."""
        if self._is_broken:
            return
        if measured.steps > self._last.steps:  # the last file keeps the queue of the one before
            self._recent = measured.since(self._last)
        try:
            write_metrics(self.path, self._process, measured, self._recent, slowest)
        except OSError as error:
            self._is_broken = True
            warn(f"metrics={str(self.path)!r} cannot be written any more: {error}")
        self._written, self._last = now, measured


def write_metrics(
    path: Path, process: int, measured: Measured, recent: Measured, slowest: int | None
) -> None:
    """Write what a process measured, atomically: a reader finds the old file or the new one.

    Args:
        path: The file.
        process: Number of the process over all nodes.
        measured: Since the training began.
        recent: Since the file was written last.
        slowest: The rank that waited most in the last epoch; None before its end.

    Raises:
        OSError: If the file cannot be written.
    """
    from prometheus_client import CollectorRegistry
    from prometheus_client.openmetrics import exposition

    untyped: Any = exposition
    labels = {"rank": str(process), "data_rank": str(measured.rank)}
    registry = CollectorRegistry()
    registry.register(_Collector([*_counters(labels, measured), *_gauges(labels, recent.queue, slowest)]))
    with renamed(path, durable=False) as stream:
        stream.write(untyped.generate_latest(registry))


class _Collector:
    """Families of metrics, as a registry takes them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return the families."""
        return self._families


def _counters(labels: dict[str, str], measured: Measured) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily

    values = list(labels.values())
    text = "Time of training steps by stage; waiting for data is the stage wait."
    stages = CounterMetricFamily("tarpeg_step", text, labels=[*labels, "stage"], unit="seconds")
    for stage, seconds in measured.seconds.items():
        stages.add_metric([*values, stage], seconds)
    yield stages
    found = [
        ("tarpeg_images", "Images of training steps.", "", measured.images),
        ("tarpeg_substituted_images", "Undecodable images that were replaced.", "", measured.substituted),
        ("tarpeg_read", "Bytes of the encoded images.", "bytes", measured.nbytes),
    ]
    for name, text, unit, value in found:
        if value is not None:
            family = CounterMetricFamily(name, text, labels=list(labels), unit=unit)
            family.add_metric(values, value)
            yield family


def _gauges(labels: dict[str, str], queue: float | None, slowest: int | None) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    found = [
        (
            "tarpeg_queued_batches",
            "Decoded batches ready when the next one was asked for, on average.",
            queue,
        ),
        ("tarpeg_slowest_rank", "Data-parallel rank that waited most for data in the last epoch.", slowest),
    ]
    for name, text, value in found:
        if value is not None:
            family = GaugeMetricFamily(name, text, labels=list(labels))
            family.add_metric(list(labels.values()), value)
            yield family

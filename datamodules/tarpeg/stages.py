"""Which stage of a training step time belongs to, by the clock of the CPU or of the GPU."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, cast

import torch

STAGES = ("wait", "transfer", "augment", "compute", "other")


class Timeline:
    """Adds up the seconds of each stage: ``enter`` and ``leave`` nest, what is in no stage is "other".

    It stands still until ``begin``, and again from ``pause`` on. ``seconds``: what ``read`` knows of so far.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self._stage: str | None = None  # None: it stands still
        self._outer: list[str | None] = []
        self._mark = 0.0

    @property
    def is_running(self) -> bool:
        """Whether time counts."""
        return self._stage is not None

    def begin(self, stage: str = "other") -> None:
        """Count from now on."""
        self._outer.clear()
        self._turn(stage)

    def pause(self) -> None:
        """Count no more, whatever was entered."""
        self._outer.clear()
        self._turn(None)

    def enter(self, stage: str) -> None:
        """Begin a stage within the present one; ``leave`` goes back to that."""
        self._outer.append(self._stage)
        if self._stage is not None:
            self._turn(stage)

    def leave(self) -> None:
        """End the stage that was entered last."""
        outer = self._outer.pop() if self._outer else None
        if outer is not None and self._stage is not None:
            self._turn(outer)

    def read(self, *, all_of_it: bool = False) -> None:
        """Bring ``seconds`` up to date; ``all_of_it`` may wait for a device that is behind."""
        self._turn(self._stage)

    def forget(self) -> None:
        """Count anew from now on."""
        self._turn(self._stage)
        self.seconds.update(dict.fromkeys(STAGES, 0.0))

    def _turn(self, stage: str | None) -> None:
        now = time.perf_counter()
        if self._stage is not None:
            self.seconds[self._stage] += now - self._mark
        self._mark, self._stage = now, stage


class Event(Protocol):
    """A mark in a device's queue of work: what ``torch.cuda.Event(enable_timing=True)`` is."""

    def record(self) -> None:
        """Put the mark behind all work there is so far."""

    def query(self) -> bool:
        """Tell whether the device has come there, without waiting."""

    def synchronize(self) -> None:
        """Wait until it has."""

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this mark to another."""


def _cuda_event() -> Event:
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    return cast(Event, event)


class DeviceTimeline(Timeline):
    """A Timeline of the GPU's time: marks go into its queue and are read once it has passed them.

    Nothing waits for the GPU. While it is still busy with the step before, a wait of the program's is no wait
    of the GPU's and takes no time here.
    """

    def __init__(self, event: Callable[[], Event] = _cuda_event) -> None:
        super().__init__()
        self._event = event
        self._passing: deque[tuple[Event, str | None]] = deque()  # marks, and the stages that begin there
        self._spare: list[Event] = []

    def read(self, *, all_of_it: bool = False) -> None:
        """Add up what lies between marks that the GPU has passed."""
        if all_of_it and self._passing:
            self._turn(self._stage)
            self._passing[-1][0].synchronize()
        while len(self._passing) > 1 and self._passing[1][0].query():
            mark, stage = self._passing.popleft()
            if stage is not None:
                self.seconds[stage] += mark.elapsed_time(self._passing[0][0]) / 1e3
            self._spare.append(mark)

    def forget(self) -> None:
        """Count anew from now on."""
        self._turn(self._stage)
        while len(self._passing) > 1:
            self._passing.popleft()
        self.seconds.update(dict.fromkeys(STAGES, 0.0))

    def _turn(self, stage: str | None) -> None:
        mark = self._spare.pop() if self._spare else self._event()
        mark.record()
        self._passing.append((mark, stage))
        self._stage = stage

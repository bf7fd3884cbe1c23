"""What the ranks of a training measured: sums of each, a table, and metrics for loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .advice import STAGES

# Ranks in a table, and ranks whose metrics are logged one by one.
_MOST_ROWS, _MOST_LOGGED = 16, 64


@dataclass(frozen=True)
class Measured:
    """What one process measured, as sums over steps.

    Args:
        rank: Its data-parallel rank.
        seconds: By stage.
        images: Number of images.
        substituted: Images that were replaced by others, since the loader was made.
        steps: Number of steps with the next two.
        queued: Decoded batches that waited at the end of each step; None of a loader that is not tarpeg's.
        nbytes: bytes of the encoded images; None as above.
    """

    rank: int = 0
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    images: int = 0
    substituted: int = 0
    steps: int = 0
    queued: int | None = None
    nbytes: int | None = None

    @property
    def shares(self) -> dict[str, float]:
        """Share of each stage, 0 to 1."""
        total = sum(self.seconds.values())
        return {stage: self.seconds[stage] / total if total else 0.0 for stage in STAGES}

    @property
    def images_per_second(self) -> float:
        """Images per second of this process."""
        total = sum(self.seconds.values())
        return self.images / total if total else 0.0

    @property
    def queue(self) -> float | None:
        """Batches that were ready when the next one was asked for, on average."""
        return None if self.queued is None or not self.steps else self.queued / self.steps

    @property
    def megabytes(self) -> float | None:
        """MB of encoded images."""
        return None if self.nbytes is None else self.nbytes / 1e6

    def since(self, before: Measured) -> Measured:
        """Return what was added; ``substituted`` stays."""
        return replace(
            self,
            seconds={stage: taken - before.seconds[stage] for stage, taken in self.seconds.items()},
            images=self.images - before.images,
            steps=self.steps - before.steps,
            queued=None if self.queued is None else self.queued - (before.queued or 0),
            nbytes=None if self.nbytes is None else self.nbytes - (before.nbytes or 0),
        )


def by_rank(measured: Iterable[Measured]) -> list[Measured]:
    """Return one process of each data-parallel rank, in their order: the one that waits most.

    Processes of one rank train on the same images, which count once.
    """
    found: dict[int, Measured] = {}
    for each in measured:
        known = found.get(each.rank)
        if known is None or each.shares["wait"] > known.shares["wait"]:
            found[each.rank] = each
    return [found[rank] for rank in sorted(found)]


def slowest_of(ranks: Sequence[Measured]) -> Measured:
    """Return the rank that waits most for its data: in each step the others wait for it."""
    return max(ranks, key=lambda each: each.shares["wait"])


def table_of(ranks: Sequence[Measured]) -> str:
    """Return a table with a line per rank; of many ranks those that wait most."""
    lines = ["rank  images/s  waiting  queue    MB read"]
    slowest = slowest_of(ranks)
    shown = sorted(ranks, key=lambda each: -each.shares["wait"])[:_MOST_ROWS]
    for each in sorted(shown, key=lambda each: each.rank):
        queue, megabytes = _number(each.queue, 6), _number(each.megabytes, 10)
        remark = "  slowest" if each is slowest and len(ranks) > 1 else ""
        numbers = f"{each.rank:4d}{each.images_per_second:10.1f}{each.shares['wait']:9.1%}"
        lines.append(f"{numbers} {queue} {megabytes}{remark}")
    if len(ranks) > len(shown):
        lines.append(f"and {len(ranks) - len(shown)} others, which wait less")
    return "\n".join(lines)


def metrics_of(ranks: Sequence[Measured]) -> dict[str, float]:
    """Return metrics by name for a logger: of each rank, and the number of the slowest one.

    Of a single rank only what has no metric of all ranks, and of more than 64 the slowest one alone.
    """
    if len(ranks) == 1:
        return _known({"data/queue": ranks[0].queue, "data/megabytes_read": ranks[0].megabytes})
    found: dict[str, float | None] = {"data/slowest_rank": slowest_of(ranks).rank}
    for each in ranks if len(ranks) <= _MOST_LOGGED else ():
        found |= {
            f"data/rank{each.rank}/images_per_second": each.images_per_second,
            f"data/rank{each.rank}/wait_share": each.shares["wait"],
            f"data/rank{each.rank}/queue": each.queue,
            f"data/rank{each.rank}/megabytes_read": each.megabytes,
        }
    return _known(found)


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _number(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.1f}"

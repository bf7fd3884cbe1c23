"""The figures of the ranks: differences, the slowest one, the table and the metrics of loggers."""

from __future__ import annotations

from tarpeg.diagnostics.advice import STAGES
from tarpeg.diagnostics.figures import Measured, by_rank, metrics_of, slowest_of, table_of


def measured(rank=0, wait=1.0, **fields):
    """Ten seconds of one rank."""
    seconds = {**dict.fromkeys(STAGES, 0.0), "wait": wait, "compute": 10 - wait}
    fields = {"images": 1000, "steps": 4, "queued": 10, "nbytes": 25_000_000, **fields}
    return Measured(rank, seconds, **fields)


def test_figures_of_a_rank():
    each = measured(wait=2.5)
    assert (each.shares["wait"], each.images_per_second, each.queue, each.megabytes) == (0.25, 100, 2.5, 25)
    nothing = Measured()
    assert (nothing.images_per_second, nothing.queue, nothing.megabytes) == (0, None, None)
    assert sum(nothing.shares.values()) == 0


def test_what_was_added():
    added = measured(substituted=3, queued=12).since(measured(wait=0.5, images=400, steps=1, queued=4))
    assert (added.seconds["wait"], added.seconds["compute"]) == (0.5, -0.5)
    assert (added.images, added.steps, added.queued, added.nbytes, added.substituted) == (600, 3, 8, 0, 3)
    assert measured().since(Measured()).queued == 10, "before the first look it is unknown"
    assert measured(queued=None, nbytes=None).since(Measured()).queue is None


def test_peers_of_a_rank_count_once():
    ranks = by_rank([measured(1, 0.5), measured(0, 2), measured(1, 3), measured(0, 1)])
    assert [(each.rank, each.shares["wait"]) for each in ranks] == [(0, 0.2), (1, 0.3)]
    assert slowest_of(ranks).rank == 1


TABLE = """\
rank  images/s  waiting  queue    MB read
   0     100.0    10.0%    2.5       25.0
   3     100.0    30.0%      -          -  slowest"""


def test_the_table():
    slow = measured(3, 3, queued=None, nbytes=None)
    assert table_of([measured(), slow]) == TABLE
    assert table_of([measured()]) == "\n".join(TABLE.splitlines()[:2]), "one rank is not the slowest"
    *rows, last = table_of([measured(rank, rank / 10) for rank in range(20)]).splitlines()
    assert [int(row.split()[0]) for row in rows[1:]] == [*range(4, 20)], "those that wait most, in order"
    assert last == "and 4 others, which wait less" and rows[-1].endswith("slowest")


def test_metrics_of_loggers():
    assert metrics_of([measured()]) == {"data/queue": 2.5, "data/megabytes_read": 25}
    assert metrics_of([measured(queued=None, nbytes=None)]) == {}
    found = metrics_of([measured(), measured(1, 3, queued=None)])
    assert found == {
        "data/slowest_rank": 1,
        "data/rank0/images_per_second": 100,
        "data/rank0/wait_share": 0.1,
        "data/rank0/queue": 2.5,
        "data/rank0/megabytes_read": 25,
        "data/rank1/images_per_second": 100,
        "data/rank1/wait_share": 0.3,
        "data/rank1/megabytes_read": 25,
    }
    assert metrics_of([measured(rank, rank / 100) for rank in range(65)]) == {"data/slowest_rank": 64}

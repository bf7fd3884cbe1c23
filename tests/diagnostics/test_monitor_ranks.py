"""The report of the monitor by rank: queue and bytes of the loader, table, loggers, and the file."""

from __future__ import annotations

import io
import logging
import re
import tarfile

import lightning
import pytest
import tarpeg
from helpers import training
from helpers.scripts import run_two_ranks, wait_until
from lightning.pytorch.loggers.logger import DummyLogger
from prometheus_client.parser import text_string_to_metric_families
from tarpeg import CenterCrop, DataStallMonitor, Loader, Split
from tarpeg.diagnostics import openmetrics
from torch.utils.data import DataLoader


class Kept(DummyLogger):
    """A logger that keeps what it gets."""

    def __init__(self):
        super().__init__()
        self.metrics = []

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def of(self, name):
        return [(step, metrics[name]) for step, metrics in self.metrics if name in metrics]


def image_bytes(folder):
    found = 0
    for path in folder.glob("*.tar"):
        with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
            found += sum(member.size for member in tar if member.name.endswith(".jpg"))
    return found


@pytest.mark.parametrize(
    "settings", [{"workers": 2}, {"workers": 0, "threads": 1}, {"workers": 0, "threads": 0}]
)
def test_a_loader_counts_its_bytes_and_the_batches_that_are_ready(photos, settings):
    config = tarpeg.LoaderConfig(prefetch=2, **settings)
    loader = Loader(Split(photos, CenterCrop(16)), 4, training=False, config=config)
    assert (loader.ready, loader.bytes_read) == (0, 0)
    batches = iter(loader)
    next(batches)
    ahead = {(2, 0): 4, (0, 1): 2, (0, 0): 0}[settings["workers"], settings.get("threads", 0)]
    assert wait_until(lambda: loader.ready == ahead)
    assert 0 < loader.bytes_read < image_bytes(photos) / 4
    list(batches)
    assert (loader.ready, loader.bytes_read) == (0, image_bytes(photos))
    loader.close()


def test_a_mixture_counts_its_bytes(photos):
    split = Split(photos, CenterCrop(16))
    mixture = tarpeg.Mixture({"a": split, "b": split}, repeat={"a": 1, "b": 1})
    loader = tarpeg.MixtureLoader(mixture, batch_size=23, workers=0)
    assert len(list(loader)) == 2 and loader.bytes_read == 2 * image_bytes(photos)


def fit(folder, data, stall, logger, **settings):
    training.trainer(folder, callbacks=[stall], logger=logger, **settings).fit(training.Net(), data)


def test_a_run_of_one_rank(photos, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(openmetrics, "_INTERVAL", 0.0)
    logger, stall = Kept(), DataStallMonitor(0, metrics=tmp_path / "node.prom")
    data = training.module(photos, workers=1, batch_size=2)
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"):
        fit(tmp_path, data, stall, logger, max_epochs=2)
    (first_step, first), (step, second) = logger.of("data/megabytes_read")
    assert (first_step, step) == (11, 23)
    assert 0 < first < second == pytest.approx(image_bytes(photos) / 1e6), "the first step is not counted"
    assert all(0 <= queue <= 3 for _, queue in logger.of("data/queue"))
    header, row = stall.table.splitlines()
    assert f"data: by rank\n{stall.table}" in caplog.messages and header.split()[0] == "rank"
    assert float(row.split()[-1]) == pytest.approx(first + second, abs=0.06)
    families = text_string_to_metric_families((tmp_path / "node.prom").read_text())
    found = {sample.name: sample for family in families for sample in family.samples}
    assert found["tarpeg_images_total"].value == 44 and found["tarpeg_slowest_rank"].value == 0
    assert found["tarpeg_read_bytes_total"].value == pytest.approx((first + second) * 1e6)
    assert found["tarpeg_images_total"].labels == {"rank": "0", "data_rank": "0"}


def test_another_loader_has_neither_queue_nor_bytes(tmp_path):
    class Plain(lightning.LightningModule):
        def training_step(self, batch, number):
            return None

        def configure_optimizers(self):
            return None

    logger, stall = Kept(), DataStallMonitor(0)
    run = training.trainer(tmp_path, callbacks=[stall], logger=logger)
    run.fit(Plain(), DataLoader(range(6), batch_size=2))
    assert not logger.of("data/queue") and re.match(
        r"   0 .*%      -          -$", stall.table.splitlines()[1]
    )


def test_metrics_that_are_refused(tmp_path, photos):
    with pytest.raises(ValueError, match=r"metrics='x.txt' must be the path of a file NAME\.prom"):
        DataStallMonitor(metrics="x.txt")
    stall = DataStallMonitor(0, metrics=tmp_path / "nowhere" / "node.prom")
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere'"):
        fit(tmp_path, training.module(photos), stall, False)


SCRIPT = """
import faulthandler, json, time
faulthandler.dump_traceback_later(200, exit=True)  # a run that hangs prints its stacks
from diagnostics.test_monitor_ranks import Kept
from helpers.training import Net, module, trainer
from tarpeg import DataStallMonitor
from tarpeg.loader.fetch import Fetcher

fetch = Fetcher.fetch
Fetcher.fetch = lambda self, *given: (time.sleep(0.05 * run.global_rank), fetch(self, *given))[1]
stall, logger = DataStallMonitor(0, metrics={out!r} + "/node.prom"), Kept()
run = trainer({out!r}, devices=2, strategy="ddp", callbacks=[stall], logger=logger, max_epochs=2)
run.fit(Net(), datamodule=module({folder!r}, batch_size=2, threads=0))
found = [stall.table, logger.metrics, stall.shares["wait"], stall.images_per_second]
open({out!r} + "/rank" + str(run.global_rank) + ".json", "w").write(json.dumps(found))
"""


@pytest.mark.slow
def test_two_ranks_of_which_one_is_slow(photos, tmp_path):
    ranks = run_two_ranks(tmp_path, SCRIPT.format(folder=str(photos), out=str(tmp_path)))
    (table, metrics, share, rate), (other_table, _, other_share, other_rate) = ranks
    assert table == other_table and (share, rate) == (other_share, other_rate)
    rows = table.splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == [0, 1]
    assert rows[1].endswith("slowest") and not rows[0].endswith("slowest")
    waits = [float(row.split()[2].rstrip("%")) / 100 for row in rows]
    assert waits[0] < 0.5 < waits[1] == pytest.approx(share, abs=1e-3)
    assert sum(float(row.split()[1]) for row in rows) == pytest.approx(rate, rel=1e-2)
    found = [each for _, each in metrics if "data/slowest_rank" in each]
    assert len(found) == 2 and {each["data/slowest_rank"] for each in found} == {1}
    assert found[1]["data/rank1/wait_share"] > 0.5 and found[1]["data/rank0/queue"] == 0
    read = sum(found[1][f"data/rank{rank}/megabytes_read"] for rank in (0, 1))
    assert read == pytest.approx(image_bytes(photos) / 1e6)
    for rank in (0, 1):
        text = (tmp_path / f"node.rank{rank}.prom").read_text()
        assert f'tarpeg_slowest_rank{{data_rank="{rank}",rank="{rank}"}} 1.0' in text

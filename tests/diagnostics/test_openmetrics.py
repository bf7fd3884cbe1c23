"""The file for node_exporter: its text for two parsers, its name, and a disk that does not take it."""

from __future__ import annotations

import sys

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from tarpeg.diagnostics.advice import STAGES
from tarpeg.diagnostics.figures import Measured
from tarpeg.diagnostics.openmetrics import MetricsFile, check_metrics

SECONDS = {stage: number / 2 for number, stage in enumerate(STAGES, start=1)}
MEASURED = Measured(1, SECONDS, 640, 2, 10, 25, 123_456_789)


def values(parse, text):
    """Value by name and stage; all have the rank of the process."""
    found = {}
    for family in parse(text):
        for sample in family.samples:
            assert (sample.labels["rank"], sample.labels["data_rank"]) == ("3", "1")
            assert sample.timestamp is None, "node_exporter refuses those"
            found[sample.name, sample.labels.get("stage")] = sample.value
    return found


def test_the_text_is_that_of_openmetrics_and_of_prometheus(tmp_path):
    file = MetricsFile(tmp_path / "node.prom", 3, 4)
    assert file.path == tmp_path / "node.rank3.prom" and file.is_due(0.0)
    file.update(0.0, MEASURED, None)
    first = values(openmetrics.text_string_to_metric_families, file.path.read_text())
    assert ("tarpeg_slowest_rank", None) not in first
    expected = {
        **{("tarpeg_step_seconds_total", stage): seconds for stage, seconds in SECONDS.items()},
        ("tarpeg_images_total", None): 640,
        ("tarpeg_substituted_images_total", None): 2,
        ("tarpeg_read_bytes_total", None): 123_456_789,
        ("tarpeg_queued_batches", None): 2.5,
    }
    assert first == expected
    assert not file.is_due(9.9) and file.is_due(10.0)
    file.update(20.0, Measured(1, SECONDS, 640, 2, 14, 25, 123_456_789), 2)
    text = file.path.read_text()
    expected |= {("tarpeg_queued_batches", None): 0, ("tarpeg_slowest_rank", None): 2}
    assert values(openmetrics.text_string_to_metric_families, text) == expected, "the queue is of late"
    assert values(parser.text_string_to_metric_families, text) == expected
    file.update(30.0, Measured(1, SECONDS, 640, 2, 14, 25, 123_456_789), 2)
    assert file.path.read_text() == text, "no step since, as at the end of a run"
    assert [*tmp_path.iterdir()] == [file.path] and file.path.stat().st_mode & 0o444 == 0o444


def test_a_loader_that_is_not_tarpegs_has_neither_queue_nor_bytes(tmp_path):
    file = MetricsFile(str(tmp_path / "node.prom"), 0, 1)
    file.update(0.0, Measured(images=3), 0)
    text = file.path.read_text()
    assert file.path.name == "node.prom" and "tarpeg_images_total" in text
    assert "queued" not in text and "bytes" not in text


def test_a_folder_that_disappears_is_one_warning(tmp_path):
    folder = tmp_path / "collector"
    folder.mkdir()
    file = MetricsFile(folder / "node.prom", 0, 1)
    folder.rmdir()
    with pytest.warns(
        UserWarning, match=r"^metrics='.*node\.prom' cannot be written any more: .*No such"
    ) as caught:
        file.update(0.0, MEASURED, None)
        file.update(20.0, MEASURED, None)
    assert len(caught) == 1 and not file.is_due(1e9)


@pytest.mark.parametrize("path", ["node.txt", "node", "", 3, ".prom"])
def test_names_that_the_collector_would_not_read(path):
    with pytest.raises(ValueError, match=r"^metrics=.* must be the path of a file NAME\.prom"):
        check_metrics(path)


def test_what_is_missing_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"there is no folder '.*nowhere'"):
        MetricsFile(tmp_path / "nowhere" / "node.prom", 0, 1)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"^metrics='node.prom' needs .*pip install 'tarpeg\[metrics\]'"):
        check_metrics("node.prom")

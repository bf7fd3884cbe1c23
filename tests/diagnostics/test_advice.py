"""From shares to words: exact arithmetic, and overrides that exist."""

from __future__ import annotations

import re
import shlex

import pytest
from helpers.checkouts import ROOT
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from tarpeg.diagnostics.advice import Costs, Feed, verdict

GPU = Feed("cuda", 8, 8, "/d/train-*.tar", workers=8, augment="Augment", is_random=True)
CPU = GPU._replace(device="cpu", cores=2, compute_threads=1, workers=1)
PLAIN = Costs(images=32, tiled=0.0, decode=1000.0, cached=250.0, growth=1.0, augment=0.0)
TILED = PLAIN._replace(tiled=1.0, growth=12.4)


def shares(wait=0.0, transfer=0.0, augment=0.0, other=0.0):
    parts = {"wait": wait, "transfer": transfer, "augment": augment, "other": other}
    return {**parts, "compute": 1 - sum(parts.values())}


def said(feed, rate=8000.0, steps=100, **parts):
    """What follows the shares."""
    head, _, advice = verdict(shares(**parts), steps, rate, feed).partition(": ")
    assert "waiting for data" in head or not advice
    return advice or head


def test_the_shares_are_told():
    told = verdict(shares(wait=0.61, transfer=0.02, augment=0.03), 100, 8000.0, GPU._replace(costs=PLAIN))
    assert told.startswith("61% waiting for data, 2% transfer, 3% augmentation, 34% compute, 0% callbacks")


def test_few_steps_say_nothing():
    assert said(GPU, steps=9, wait=0.9) == "9 steps after the first are too few to tell what they wait for"


def test_data_that_keeps_up():
    told = said(GPU, wait=0.04)
    assert told.startswith("the data keeps up, nothing to gain there (at most 1.04x); ")
    assert "profiler=torch" in told
    assert "profiler=simple" in said(GPU, other=0.5)
    for stage in ("transfer", "other"):
        assert "profiler=" not in said(GPU._replace(is_profiled=True), **{stage: 0.3}), "one is on"


def test_images_that_are_not_tiled_are_to_be():
    # A quarter of the decoding: the network is what is left.
    told = said(GPU._replace(costs=PLAIN), wait=0.61)
    assert told == (
        """build a cache with `python tools/build_cache.py 'source="/d/train-*.tar"' dest=/d-cache` and """
        "train on it with data.train.shards=/d-cache; expected 2.6x"
    )
    assert said(GPU._replace(costs=PLAIN), wait=0.9).endswith("expected 4.0x"), "decoding is what is left"


def test_what_augments_in_the_workers_stays():
    # 1000 + 1000 becomes 250 + 1000; without augmentation 1000.
    told = said(CPU._replace(cores=1, costs=PLAIN._replace(augment=1000.0)), wait=0.9)
    assert told == "the loader's augmentation takes it; augment=imagenet only normalises; expected 2.0x"


def test_cores_that_are_idle_decode():
    told = said(GPU._replace(workers=2, costs=TILED), rate=2000.0, wait=0.7)
    assert told == "data.workers=8 decodes on the cores that are idle; expected 3.3x"
    told = said(GPU._replace(workers=0, threads=4, costs=None), wait=0.7)
    assert told == "data.threads=8 decodes on the cores that are idle; expected 2.0x"


def test_without_an_engine_waiting_adds_up():
    told = said(GPU._replace(workers=0), wait=0.8)
    assert told == "data.workers=5 decodes on the cores that are idle; expected 5.0x", "four keep up"
    told = said(GPU._replace(workers=4, cores=64), wait=0.4)
    assert told == "data.workers=8 decodes on the cores that are idle; expected 1.7x", "not all there are"
    # One core: a cache makes 0.2 + 0.8 / 4 of it.
    told = said(GPU._replace(workers=0, cores=1, costs=PLAIN), rate=800.0, wait=0.8)
    assert told.endswith("expected 2.5x") and "build_cache" in told


def test_a_cpu_that_trains_has_no_more_cores_than_it_has():
    # 0.2 of the time one core computes, all of it one decodes: 1.2 of 2 cores.
    assert said(CPU._replace(costs=TILED._replace(cached=1000.0)), rate=1000.0, wait=0.8).endswith(
        "expected 1.7x"
    )
    told = said(CPU._replace(compute_threads=8, costs=TILED._replace(cached=1000.0)), rate=1000.0, wait=0.8)
    assert told == "network and decoding share the cores, 2; fewer pixels help, data.train.crop.size=..."


def test_tiled_images_may_be_raw_or_smaller():
    told = said(GPU._replace(costs=TILED), wait=0.61)
    assert "codec=raw`" in told and told.endswith("a cache of 12 times the bytes; expected 2.6x")
    told = said(GPU._replace(costs=TILED._replace(cached=1000.0)), wait=0.61)
    assert "codec=resized codec.shorter=256`" in told and "expected" not in told


def test_a_disk_that_is_slow():
    told = said(GPU._replace(costs=TILED), rate=100.0, wait=0.6)
    assert "waits for the disk" in told and "data.readahead=16" in told and "(at most 2.50x)" in told


def test_streams_and_other_loaders():
    told = said(GPU._replace(source="s3://b/t-{000..009}.tar", is_streaming=True), wait=0.5)
    assert """'source="s3://b/t-{000..009}.tar"' dest=data/cache`""" in told
    assert told.endswith("data.train.shards=data/cache ++data.train.streaming=false (at most 2.00x)")
    other = Feed("cuda", 8, 8, other_workers=4)
    assert said(other, wait=0.5).startswith("give the DataLoader num_workers=8, or feed from shards")
    for workers in (8, None):  # None: no DataLoader
        assert said(other._replace(other_workers=workers), wait=0.5).startswith("feed from shards with")
    assert said(other, transfer=0.5).startswith("give the DataLoader pin_memory=True")
    assert said(other, augment=0.5).startswith("on_after_batch_transfer takes it")


def test_augmentation_and_transfer():
    assert said(GPU, augment=0.5) == (
        "fewer distortions help; augment=imagenet only normalises (at most 2.00x)"
    )
    assert said(GPU._replace(is_random=False), augment=0.5).startswith("it only normalises")
    assert said(GPU._replace(has_operators=False), augment=0.5).startswith("it is done without the CUDA op")
    assert said(GPU._replace(augment="Sequential"), augment=0.5).startswith(
        "Sequential takes it; tarpeg.Augm"
    )
    told = said(CPU._replace(workers=0, cores=4), augment=0.5)
    assert told == "data.workers=3 augments beside the training; expected 2.0x"
    told = said(CPU._replace(workers=0, threads=2, cores=4), augment=0.5)
    assert told.startswith("data.workers=3 data.threads=null augments"), "both at once are an error"
    assert "profiler=torch" in said(GPU, transfer=0.3)


def test_sources_of_every_kind():
    for source, shown, dest in (
        ("/d/shards", "source=/d/shards", "dest=/d/shards-cache"),
        (["/d/a.tar", "/d/b.tar"], """'source=["/d/a.tar","/d/b.tar"]'""", "dest=/d-cache"),
        ([f"/d/{n}.tar" for n in range(9)], "source=...", "dest=/d-cache"),
        ("train-*.tar", """'source="train-*.tar"'""", "dest=data/cache"),
        (".", "source=.", "dest=data/cache"),
        ("..", "source=..", "dest=data/cache"),
        ("../p-0.tar", "source=../p-0.tar", "dest=data/cache"),
        ("/d/{a,b}/p-*.tar", """'source="/d/{a,b}/p-*.tar"'""", "dest=data/cache"),
        ("/d/p-{00..11}.tar", """'source="/d/p-{00..11}.tar"'""", "dest=/d-cache"),
    ):
        told = said(GPU._replace(source=source, costs=PLAIN), wait=0.6)
        assert f"build_cache.py {shown} {dest}`" in told


def overrides(text):
    return [
        word
        for word in re.findall(r"(?:\+\+)?\b(?:data|augment|profiler)[\w.]*=[\w./-]+", text)
        if "..." not in word
    ]


@pytest.mark.parametrize("data", ["synthetic", "shards", "folder", "cached", "article"])
def test_every_override_exists(data):
    feeds = (GPU, CPU, GPU._replace(costs=PLAIN), GPU._replace(costs=TILED), GPU._replace(is_streaming=True))
    feeds += (GPU._replace(workers=0, threads=2), CPU._replace(workers=0, cores=4))
    feeds += (CPU._replace(cores=1, costs=PLAIN._replace(augment=5000.0)),)
    waits = [said(feed, rate=rate, wait=0.5) for feed in feeds for rate in (1.0, 8000.0)]
    rest = [said(feed, **{stage: 0.5}) for feed in feeds for stage in ("transfer", "augment", "other")]
    named = {word for text in (*waits, *rest, said(GPU)) for word in overrides(text)}
    assert len(named) > 8
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for word in named:
            compose("train", [f"data={data}", word])


@pytest.mark.parametrize(
    ("source", "dest"), [("/d/p-{00..11}.tar", "/d-cache"), ('/x\'s "y"/*.tar', '/x\'s "y"-cache')]
)
def test_the_command_is_one_that_the_tool_takes(source, dest):
    told = said(GPU._replace(costs=PLAIN, source=source), wait=0.6)
    _, tool, *settings = shlex.split(re.search(r"`(.*?)`", told)[1])
    assert (ROOT / tool).is_file()
    parsed = {part.key_or_group: part.value() for part in OverridesParser.create().parse_overrides(settings)}
    assert {name: str(value) for name, value in parsed.items()} == {
        "source": source,
        "dest": dest,
    }

"""Advice from shares and costs: arithmetic, Python for users of the package, overrides for train.py."""

from __future__ import annotations

import re
import shlex

import pytest
import tarpeg
from helpers.checkouts import ROOT
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from tarpeg.diagnostics.advice import Costs, RunFacts, advise
from tarpeg.remedies import Call
from tarpeg.transforms.plan import PlannedStep
from tarpeg_hydra.overrides import in_overrides

GPU = RunFacts("cuda", 8, 8, "/d/train-*.tar", workers=8, augment="Augment", is_random=True)
CPU = GPU._replace(device="cpu", cores=2, compute_threads=1, workers=1)
PLAIN = Costs(images=32, tiled=0.0, decode=1000.0, cached=250.0, growth=1.0, augment=0.0)
TILED = PLAIN._replace(tiled=1.0, growth=12.4)


def advice(run, rate=8000.0, steps=100, **shares):
    shares = {"wait": 0.0, "transfer": 0.0, "augment": 0.0, "other": 0.0} | shares
    return advise({**shares, "compute": 1 - sum(shares.values())}, steps, rate, run)


def text(run, **settings):
    """The advice in Python, after the shares."""
    head, *parts = advice(run, **settings)
    assert "waiting for data" in head or not parts
    return "".join(map(str, parts)) or head


def overrides(run, **settings):
    """The advice as train.py prints it, after the shares."""
    return in_overrides(advice(run, **settings)[1:])


def test_shares_come_first_if_there_are_enough_steps():
    head, *_ = advice(GPU, wait=0.61, transfer=0.02, augment=0.03)
    shares = "61% waiting for data, 2% transfer, 3% augmentation, 34% compute"
    assert head == f"{shares}, 0% callbacks and loggers: "
    assert text(GPU, steps=9, wait=0.9) == "9 steps after the first are too few to measure what they wait for"


def test_data_that_keeps_up():
    limit = "the data keeps up, there is nothing to gain (at most 1.04x)"
    assert text(GPU, wait=0.04) == f"{limit}; Trainer(profiler='pytorch') shows the rest"
    assert "`python train.py profiler=torch` shows" in overrides(GPU, wait=0.04)
    assert "Trainer(profiler='simple') lists" in text(GPU, other=0.5)
    assert "`python train.py profiler=simple` lists" in overrides(GPU, other=0.5)
    for stage in ("transfer", "other"):
        assert "profiler" not in text(GPU._replace(is_profiled=True), **{stage: 0.3}), "it has one already"


def test_a_cache_for_images_that_are_not_tiled():
    # Decoding takes a quarter of the time; then the network is the limit.
    run = GPU._replace(costs=PLAIN)
    assert text(run, wait=0.61) == (
        "build a cache with tarpeg.build_cache(source='/d/train-*.tar', dest='/d-cache') and train on it "
        "with Split(shards='/d-cache/train-*.tar'); expected 2.6x"
    )
    assert overrides(run, wait=0.61) == (
        """build a cache with `python tools/build_cache.py 'source="/d/train-*.tar"' dest=/d-cache` and """
        """train on it with 'data.train.shards="/d-cache/train-*.tar"'; expected 2.6x"""
    )
    assert text(run, wait=0.9).endswith("expected 4.0x"), "decoding is the limit"


def test_a_cache_does_not_speed_up_augmentation_in_workers():
    # 1000 + 1000 becomes 250 + 1000; without augmentation 1000.
    run = CPU._replace(cores=1, costs=PLAIN._replace(augment=1000.0))
    words = "the loader's augmentation takes it; "
    assert text(run, wait=0.9) == f"{words}Augment() only normalises; expected 2.0x"
    assert "; augment=imagenet only normalises" in overrides(run, wait=0.9)


@pytest.mark.parametrize(
    ("run", "wait", "setting", "gain"),
    [
        (GPU._replace(workers=2, costs=TILED), 0.7, "workers=8", 3.3),
        (GPU._replace(workers=0, threads=4), 0.7, "threads=8", 2.0),
        # Decoding in the step adds up; four workers keep up.
        (GPU._replace(workers=0), 0.8, "workers=5", 5.0),
        (GPU._replace(workers=4, cores=64), 0.4, "workers=8", 1.7),  # not all cores
    ],
)
def test_idle_cores_decode(run, wait, setting, gain):
    words = f"decodes on the idle cores; expected {gain}x"
    assert text(run, rate=2000.0, wait=wait) == f"ShardDataModule({setting}) {words}"
    assert overrides(run, rate=2000.0, wait=wait) == f"data.{setting} {words}"


def test_one_core_that_decodes_within_the_step():
    # A cache makes 0.2 + 0.8 / 4 of it.
    found = text(GPU._replace(workers=0, cores=1, costs=PLAIN), rate=800.0, wait=0.8)
    assert found.endswith("expected 2.5x") and "build_cache" in found


def test_a_cpu_that_trains_shares_its_cores():
    run = CPU._replace(costs=TILED._replace(cached=1000.0))
    # 0.2 of the time one core computes, all of it one decodes: 1.2 of 2 cores.
    assert text(run, rate=1000.0, wait=0.8).endswith("expected 1.7x")
    words = "network and decoding share the 2 cores; fewer pixels help: a smaller crop in "
    busy = run._replace(compute_threads=8)
    assert text(busy, rate=1000.0, wait=0.8) == words + "Split(crop=...)"
    assert overrides(busy, rate=1000.0, wait=0.8) == words + "data.train.crop.size=..."


def test_a_gpu_decodes_what_workers_gather():
    # 1000 us of a worker become 15.
    run = GPU._replace(costs=TILED._replace(gather=15.0))
    words = "decodes on the GPU what the workers gather; expected 2.6x"
    assert text(run, wait=0.61) == f"ShardDataModule(decode='device') {words}"
    assert overrides(run, wait=0.61) == f"data.decode=device {words}"
    for other in (run._replace(device="cpu"), run._replace(has_operators=False)):
        assert "decode='device'" not in text(other, wait=0.61)
    done = GPU._replace(is_gathering=True)
    assert text(done, wait=0.61) == (
        "the workers gather already, and the device decodes; fewer pixels help: a smaller crop in "
        "Split(crop=...) (at most 2.56x)"
    )


def test_tiled_images_may_be_raw_or_smaller():
    run = GPU._replace(costs=TILED)
    assert "dest='/d-cache', codec=tarpeg.Raw())" in text(run, wait=0.61)
    assert text(run, wait=0.61).endswith(", which takes 12 times the bytes; expected 2.6x")
    assert " dest=/d-cache codec=raw`" in overrides(run, wait=0.61)
    run = GPU._replace(costs=TILED._replace(cached=1000.0))
    assert "codec=tarpeg.Resized(shorter=256))" in text(run, wait=0.61)
    assert " codec=resized codec.shorter=256`" in overrides(run, wait=0.61)
    assert "expected" not in text(run, wait=0.61)


def test_packed_images_leave_out_entropy_coding():
    both = PLAIN._replace(packed=120.0, packed_growth=1.36)
    growth = ", which leaves out entropy coding for 1.4 times the bytes; expected"
    # 250 or 120 of 1000 us: packed is the better one only if decoding stays the limit.
    assert "codec" not in text(GPU._replace(costs=both), wait=0.61)
    run = GPU._replace(costs=both)
    assert "dest='/d-cache', codec=tarpeg.Packed()) and train on it" in text(run, wait=0.9)
    assert text(run, wait=0.9).endswith(f"{growth} 8.3x")
    assert " dest=/d-cache codec=packed`" in overrides(run, wait=0.9)
    costs = TILED._replace(decode=250.0, cached=80.0)
    tiled = GPU._replace(costs=costs._replace(packed=120.0, packed_growth=1.36))
    assert text(tiled, rate=32e3, wait=0.5).endswith(f"{growth} 2.0x"), "fewer bytes than raw"
    assert "codec=tarpeg.Raw()" in text(tiled, rate=32e3, wait=0.9)
    packed = GPU._replace(costs=costs)
    assert "codec=tarpeg.Raw()" in text(packed, rate=32e3, wait=0.5), "packed already"


def test_a_slow_disk():
    run = GPU._replace(costs=TILED)
    found = text(run, rate=100.0, wait=0.6)
    assert "waits for the disk" in found and found.endswith("(at most 2.50x)")
    for setting in ("readahead=16", "prefetch=8"):
        assert f"ShardDataModule({setting})" in found
        assert f"data.{setting}" in overrides(run, rate=100.0, wait=0.6)


def test_steps_in_python_that_take_the_time():
    note = "tarpeg.RandAugment, in transform= or Augment(policy=...), takes about 212 us"
    steps = PlannedStep("invert", False, us=100.0), PlannedStep("RandAugment(num_ops=2)", False, note, 1500.0)
    costs = TILED._replace(decode=2000.0, cached=1900.0, python=steps)
    taken = "take 1,600 of the 2,000 us per image; the slowest is"
    words = (
        f"the steps in Python of Split(transform=...) {taken} RandAugment: {note}; split.plan() lists them"
    )
    busy = CPU._replace(costs=costs, workers=2, compute_threads=8)
    assert text(busy, rate=900.0, wait=0.55) == f"{words} (at most 2.22x)", "not a smaller crop"
    assert text(busy, rate=900.0, wait=0.95) == f"{words} (at most 5.00x)", "400 us are left"
    assert text(busy, rate=10.0, wait=0.55) == f"{words} (at most 2.22x)", "not the disk"
    assert overrides(busy, wait=0.55).startswith(f"the steps in Python of data.train.transform=... {taken}")
    idle = "; ShardDataModule(workers=8) decodes on the idle cores; expected 3.3x"
    assert text(GPU._replace(workers=2, costs=costs), rate=900.0, wait=0.7) == words + idle
    inline = CPU._replace(workers=0, cores=1, costs=costs)
    assert text(inline, rate=400.0, wait=0.5) == f"{words} (at most 1.67x)", "0.5 + 0.5 / 5"
    alone = busy._replace(costs=costs._replace(python=(PlannedStep("invert", False, us=9000.0),)))
    assert "take 2,000 of the 2,000 us per image; the slowest is invert; split" in text(alone, wait=0.55)
    for few in (steps[:1], (PlannedStep("invert", False),)):  # 5% of the time, and not measured
        run = busy._replace(costs=costs._replace(python=few))
        assert text(run, rate=10.0, wait=0.55).startswith("decoding is much faster than this")


def test_streams():
    run = GPU._replace(source="s3://b/t-{000..009}.tar", is_streaming=True)
    assert text(run, wait=0.5).endswith(
        "Split(shards='data/cache/t-{000..009}.tar', streaming=False) (at most 2.00x)"
    )
    found = overrides(run, wait=0.5)
    assert """'source="s3://b/t-{000..009}.tar"' dest=data/cache`""" in found
    shards = """'data.train.shards="data/cache/t-{000..009}.tar"' ++data.train.streaming=false"""
    assert found.endswith(f"{shards} (at most 2.00x)")


def test_other_loaders():
    other = RunFacts("cuda", 8, 8, other_workers=4)
    assert text(other, wait=0.5).startswith("give the DataLoader num_workers=8, or read shards")
    for workers in (8, None):  # None: not a DataLoader
        assert text(other._replace(other_workers=workers), wait=0.5).startswith("read shards with")
    assert text(other, transfer=0.5).startswith("give the DataLoader pin_memory=True")
    assert text(other, augment=0.5).startswith("your on_after_batch_transfer takes it")


def test_augmentation_and_transfer():
    assert text(GPU, augment=0.5) == "fewer distortions help; Augment() only normalises (at most 2.00x)"
    assert overrides(GPU, augment=0.5).startswith("fewer distortions help; augment=imagenet only")
    assert text(GPU._replace(is_random=False), augment=0.5).startswith("it only normalises; fewer pixels")
    broken = GPU._replace(has_operators=False)
    words = "it runs without the CUDA operators: "
    assert text(broken, augment=0.5).startswith(words + "tarpeg.diagnose() shows the reason")
    assert overrides(broken, augment=0.5).startswith(words + "`python tools/doctor.py` shows the reason")
    assert text(GPU._replace(augment="Sequential"), augment=0.5).startswith("Sequential takes it; tarpeg.Aug")
    run = CPU._replace(workers=0, cores=4)
    words = "augments in parallel to the training; expected 2.0x"
    assert text(run, augment=0.5) == f"ShardDataModule(workers=3) {words}"
    both = run._replace(threads=2)  # workers and threads at once are an error
    assert text(both, augment=0.5) == f"ShardDataModule(workers=3, threads=None) {words}"
    assert overrides(both, augment=0.5) == f"data.workers=3 data.threads=null {words}"
    words = "Trainer(profiler='pytorch') shows the copies; fewer pixels help: a smaller crop in "
    assert text(GPU, transfer=0.3) == words + "Split(crop=...)"


@pytest.mark.parametrize(
    ("source", "override", "dest"),
    [
        ("/d/shards", "source=/d/shards", "dest=/d/shards-cache"),
        (["/d/a.tar", "/d/b.tar"], """'source=["/d/a.tar","/d/b.tar"]'""", "dest=/d-cache"),
        ([f"/d/{n}.tar" for n in range(9)], "source=...", "dest=/d-cache"),
        ("train-*.tar", """'source="train-*.tar"'""", "dest=data/cache"),
        (".", "source=.", "dest=data/cache"),
        ("..", "source=..", "dest=data/cache"),
        ("../p-0.tar", "source=../p-0.tar", "dest=data/cache"),
        ("/d/{a,b}/p-*.tar", """'source="/d/{a,b}/p-*.tar"'""", "dest=data/cache"),
        ("/d/p-{00..11}.tar", """'source="/d/p-{00..11}.tar"'""", "dest=/d-cache"),
        ('/x\'s "y"/*.tar', r"""'source="/x'"'"'s \"y\"/*.tar"'""", r"""'dest="/x'"'"'s \"y\"-cache"'"""),
    ],
)
def test_every_kind_of_source(source, override, dest):
    run = GPU._replace(source=source, costs=PLAIN)
    command = f"python tools/build_cache.py {override} {dest}"
    assert f"`{command}`" in overrides(run, wait=0.6)
    _, tool, *settings = shlex.split(command)
    assert (ROOT / tool).is_file()
    given, out = (part.value() for part in OverridesParser.create().parse_overrides(settings))
    assert override == "source=..." or str(given) == str(source), "valid for the tool"
    shown = "..." if override == "source=..." else repr(source)
    assert f"build_cache(source={shown}, dest={str(out)!r})" in text(run, wait=0.6)


def every_advice():
    runs = [GPU, CPU, GPU._replace(is_streaming=True), GPU._replace(has_operators=False)]
    runs += [GPU._replace(costs=costs) for costs in (PLAIN, TILED, TILED._replace(cached=1000.0))]
    runs += [GPU._replace(costs=PLAIN._replace(cached=900.0, packed=100.0, packed_growth=1.4))]
    runs += [GPU._replace(workers=0, threads=2), CPU._replace(workers=0, cores=4)]
    runs += [CPU._replace(cores=1, costs=PLAIN._replace(augment=5000.0))]
    runs += [GPU._replace(costs=PLAIN._replace(python=(PlannedStep("invert", False, us=900.0),)))]
    waits = [advice(run, rate=rate, wait=0.5) for run in runs for rate in (1.0, 8000.0)]
    rest = [advice(run, **{stage: 0.5}) for run in runs for stage in ("transfer", "augment", "other")]
    return [*waits, *rest, advice(GPU)]


@pytest.mark.sweep
@pytest.mark.parametrize("data", ["synthetic", "shards", "folder", "cached", "article"])
def test_every_override_exists(data):
    pattern = r"(?:\+\+)?\b(?:data|augment|profiler)[\w.]*=[\w./-]+"
    words = {word for each in every_advice() for word in re.findall(pattern, in_overrides(each))}
    words = {word for word in words if "..." not in word}
    assert len(words) > 8
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for word in words:
            compose("train", [f"data={data}", word])


def test_every_call_exists():
    calls = [part for each in every_advice() for part in each if isinstance(part, Call)]
    nested = [value for call in calls for value in call.arguments.values() if isinstance(value, Call)]
    names = {call.function.removeprefix("tarpeg.") for call in (*calls, *nested)}
    public = "Augment Packed Raw Resized ShardDataModule Split Trainer build_cache diagnose"
    assert " ".join(sorted(names)) == public
    assert names - {"Trainer"} <= set(tarpeg.__all__)
    tarpeg.ShardDataModule(tarpeg.Split("x", tarpeg.Whole(8)), workers=3, threads=None)

"""The crop and resize suites on a device, with the CPU as the device."""

from __future__ import annotations

import csv
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tarpeg.datasets.synthetic import Photos, photograph
from tarpeg.sampling.crops import RandomCrop, RandomResizedCrop

from benchmarks import device, device_peers, measure as measuring
from benchmarks.decode_peers import decode_input
from benchmarks.device import AWAITED, IN_FLIGHT, PARTS, device_report
from benchmarks.device_peers import DeviceContestant, DeviceSetting
from benchmarks.measure import measure
from benchmarks.report import Report

CPU = torch.device("cpu")


def photographs(count, side):
    photos = Photos(size=side)
    return [photograph(photos, index).jpeg for index in range(count)]


def inputs_of(count, crop, side=(80, 96)):
    return decode_input(photographs(count, side), crop, 32, 0, False)


@pytest.fixture(autouse=True)
def few_batches(monkeypatch):
    monkeypatch.setattr(device, "_LEAST_IN_FLIGHT", 1)
    monkeypatch.setattr(device_peers, "BATCH", 2)
    monkeypatch.setattr(device, "BATCH", 2)


@pytest.mark.parametrize("crop", [RandomCrop(32), RandomResizedCrop(24)])
def test_a_table_of_all_contestants(tmp_path, crop, monkeypatch):
    for name in ("torchcodec.decoders", "nvidia.dali", "nvidia.nvimgcodec"):
        monkeypatch.setitem(sys.modules, name, None)
    suite, is_resized = ("resize", True) if isinstance(crop, RandomResizedCrop) else ("crop", False)
    report = Report(suite=suite, size="80x96", images=3, rounds=1, clock="wall", tile=32, work="some work")
    progress = []
    report = device_report(
        report, photographs(3, (80, 96)), crop, 0, CPU, 2, lambda what, share: progress.append((what, share))
    )
    rows = {(row.group, row.name): row for row in report.rows}
    whole = {name for group, name in rows if group == AWAITED}
    assert whole == {name for group, name in rows if group == IN_FLIGHT}
    ends = (", fast", ", exact") if is_resized else ("",)
    ours = {f"tarpeg, {kind}{end}" for kind in ("tiled", "packed") for end in ends}
    assert ours < whole and {name for group, name in rows if group == PARTS} == (
        {f"{name}: decoding" for name in ours}
        | {f"{name}: gathering on the host" for name in ours if not name.endswith("exact")}
    )
    assert rows[AWAITED, "torchvision v2 on the CPU"].ratio == 1.0 and progress[-1] == ("measuring", 1.0)
    for (_, name), row in rows.items():
        assert row.microseconds == pytest.approx(1e6 / row.images_per_second) and row.processor >= 0
        if name.startswith("bound") or "gathering" in name:
            assert row.mean is None
        elif not is_resized:
            assert row.maximum == 0, name
        else:
            assert row.mean <= 0.6 and ("exact" not in name or row.maximum <= 1), name
    # The two paths to the same pixels.
    on_cpu, on_device = (rows[AWAITED, f"tarpeg, tiled{end}"] for end in (", on the CPU", ends[0]))
    assert (on_cpu.mean, on_cpu.maximum) == (on_device.mean, on_device.maximum)

    assert report.title == (
        "some work: 3 80x96 photographs, in batches of 2 to the CPU, 2 host threads, medians of 1 rounds"
    )
    assert [line.partition(" (")[0] for line in report.missing] == [
        "left out: pip install torchcodec",
        "left out: pip install nvidia-nvimgcodec-cu13 nvidia-nvjpeg",
        "left out: pip install nvidia-dali-cuda130 nvidia-nvjpeg",
    ]
    assert all(
        "times the best peer that decodes there, torchvision, nvJPEG" in line for line in report.figures
    )
    table, *_ = report.write(tmp_path)
    assert table.name == f"{suite}-cpu-80x96.csv"
    with table.open() as stream:
        (first, *_) = csv.DictReader(stream)
    assert (first["device"], first["workers"], first["batch"]) == ("the CPU", "2", "2")


def test_all_batches_of_the_peers_that_are_installed():
    """DALI and nvImageCodec, which the table above leaves out."""
    setting, crop = DeviceSetting(CPU, 1, 24, True), RandomResizedCrop(24)
    batches = [inputs_of(count, crop) for count in (2, 2, 1)]
    for packages, make in device_peers.DEVICE_PEERS[1:]:
        try:
            contestants = make(setting)
        except (ImportError, OSError, RuntimeError):
            continue
        for who in contestants:
            prepared = [who.prepare(batch) for batch in batches]
            for _ in range(2):  # nothing is left of the first time
                counts = [len(images) for images in who.all_of(prepared)]
                assert counts == [2, 2, 1], (packages, who.name)
            if who.compared:
                assert who.pixels(prepared[2]).shape == (1, 3, 24, 24)


def test_a_peer_that_cannot_decode_here_is_left_out(monkeypatch):
    def unable(inputs):
        raise RuntimeError("no such decoder on this GPU\nwith details")

    monkeypatch.setattr(
        device, "DEVICE_PEERS", (("a-peer", lambda setting: [DeviceContestant("a peer", unable)]),)
    )
    report = Report(suite="crop", size="80x96", images=1, rounds=1, clock="wall", tile=32)
    report = device_report(
        report, photographs(1, (80, 96)), RandomCrop(16), 0, CPU, 1, lambda what, share: None
    )
    assert report.missing == ("left out: pip install a-peer (no such decoder on this GPU)",)
    assert not report.figures and all("peer" not in row.name for row in report.rows)


def test_images_of_several_kinds_become_pixels():
    class OfDali:
        def as_cpu(self):
            return iter(np.full((2, 4, 5, 3), 7, np.uint8))

    single = torch.full((3, 4, 5), 7, dtype=torch.uint8)
    for images in (torch.stack([single, single]), [single, single], OfDali()):
        pixels = DeviceContestant("x", lambda _, images=images: images).pixels(None)
        assert pixels.shape == (2, 3, 4, 5) and int(pixels.min()) == 7


def test_buffers_are_used_again_when_their_copies_are_done():
    pinned = device_peers._Pinned(DeviceSetting(CPU, 1, 24, True))
    first = pinned.buffer(100)
    assert len(first) == 125
    assert pinned.send(first[:7]) is not None
    others = [pinned.buffer() for _ in range(device_peers._SLOTS - 1)]
    assert len({memory.data_ptr() for memory in (first, *others)}) == device_peers._SLOTS
    copied = Mock()
    pinned._events[0 if pinned._slot == device_peers._SLOTS - 1 else pinned._slot + 1] = copied
    assert pinned.buffer().data_ptr() == first.data_ptr()
    copied.synchronize.assert_called_once_with()
    pinned.grow(1000)
    assert len(pinned.buffer()) == 1250


def test_files_without_tiles_are_an_error():
    crop = RandomCrop(32)
    inputs = inputs_of(2, crop)
    untiled = inputs._replace(kinds={"tiled": inputs.tensors})
    path = device_peers._Gathering(DeviceSetting(CPU, 1, 32, False), "tiled", "fast")
    with pytest.raises(ValueError, match="2 of 2 images as tiled files are not gathered"):
        path.on_device(untiled)


def test_the_suites_hand_over_what_the_device_needs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    made = Mock(side_effect=lambda report, *rest: report)
    monkeypatch.setattr(measuring, "device_report", made)
    measure("crop", size=(300, 300), images=2, rounds=1, device="cuda", threads=3)
    report, jpegs, crop, seed, where, threads, _ = made.call_args.args
    assert (report.work, len(jpegs), crop.size, seed) == ("random 256x256 crop", 2, (256, 256), 0)
    assert (where, threads) == (torch.device("cuda", 0), 3)
    monkeypatch.setattr(measuring, "_DEVICE_IMAGES", 5)
    measure("resize", size=64, device="cuda")
    report, jpegs, crop, *_ = made.call_args.args
    assert (len(jpegs), report.images, report.rounds, crop) == (5, 5, 7, RandomResizedCrop(224))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"suite": "views"}, "device='cuda' must be .* suite=augment, crop or resize"),
        ({"clock": "cpu"}, "device='cuda' needs clock='wall' and interpolation='bilinear' for suite='crop'"),
        ({"suite": "resize", "interpolation": "box"}, "needs .* interpolation='bilinear'"),
        ({"threads": 0}, "threads=0 must be an integer of at least 1"),
    ],
)
def test_wrong_settings_of_a_device(settings, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match=message):
        measure(**{"suite": "crop", "device": "cuda", **settings})

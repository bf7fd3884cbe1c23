"""verify_cache finds every kind of damage, with the shard, and with the key if it is known."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import tarpeg
from helpers import crafted, pictures
from helpers.small_caches import make_cache
from helpers.small_tars import cache_home as cache_home, plain, write_tar
from tarpeg.cache import targets as cache_targets
from tarpeg.cache.report import summarise_build, summarise_check
from tarpeg.cache.verify import Problem, verify_cache


def jpeg(seed: int) -> bytes:
    return tarpeg.Tiled(32).encode(pictures.jpeg("420", 64, 96, seed), "jpg").data


PPM = b"P6 2 2 255\n" + bytes(12)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    members = {
        f"train-{shard}": [
            (f"f/k{shard}{n}.{name}", data)
            for n in range(3)
            for name, data in (("jpg", jpeg(3 * shard + n)), ("cls", b"7"), ("", b"no extension"))
        ]
        for shard in range(3)
    }
    members["train-2"].append(("raw.ppm", PPM))
    return make_cache(tmp_path_factory.mktemp("verify") / "cache", members)


@pytest.fixture
def cache(built, tmp_path):
    return shutil.copytree(built, tmp_path / "cache")


def change(path, at, data):
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def found(cache):
    return [str(problem) for problem in verify_cache(cache, 0).problems]


def test_a_good_cache(cache):
    (cache / ".build.lock").touch()
    report = verify_cache(cache, 0)
    assert report.is_good and not report.problems and not report.extra
    size = sum(tar.stat().st_size for tar in cache.glob("*.tar"))
    assert (report.dest, report.shards, report.samples, report.bytes) == (cache, 3, 10, size)
    assert summarise_check(report)[0].startswith(f"{cache}: 3 shards, all good (10 samples")


def test_an_index_of_rows_that_is_not_that_of_the_tiles(tmp_path):
    photo = tarpeg.Tiled(160).encode(pictures.jpeg("420", 400, 160), "jpg").data
    start, markers = crafted.scan_of(photo)
    numbers = [len(photo) - 2 - start, *markers]
    photos = [
        crafted.with_index(photo, each) for each in (numbers, [numbers[0], *numbers[9:], *numbers[-8:]])
    ]
    members = {"train-0": [(f"k{n}.jpg", data) for n, data in enumerate(photos)]}
    cache = make_cache(tmp_path / "cache", members)
    assert found(cache) == [
        "shard train-0.tar, key 'k1': the index of its rows of tiles is not that of its tiles"
    ]


def second_sample(cache, shard):
    """Offset of the second sample's image, from the index."""
    return int((cache / f"{shard}.idx").read_text().split("\n")[2].split()[1])


def test_a_changed_label_header_and_image_with_an_intact_index(cache):
    labelled, headed, pictured = (cache / f"train-{shard}.tar" for shard in range(3))
    change(labelled, labelled.read_bytes().index(b"7" + bytes(511)), b"8")
    change(headed, 0, b"\xff" * 100)
    scan = pictured.read_bytes().index(b"\xff\xda", second_sample(cache, "train-2"))
    change(pictured, scan + 40, b"\xff\xff\xff\xff")
    first, second, header, third, undecodable = verify_cache(cache, 0).problems
    checksum = "its checksum differs from manifest.json"
    assert [first, second, third] == [Problem(f"train-{shard}.tar", "", checksum) for shard in range(3)]
    assert "train-1.tar is not a complete tar" in str(header)
    assert undecodable.key == "f/k21" and undecodable.what.startswith("image is ")


def test_damaged_images_and_repeated_keys_of_the_build(tmp_path):
    good = jpeg(0)
    members = [("a.jpg", good), ("b.jpg", good[:-200]), ("c.jpg", b""), ("d.jpg", b"text"), ("e.jpg", good)]
    twice = [("a.jpg", jpeg(0)), ("a.jpg", jpeg(1))]
    *undecodable, repeated = found(make_cache(tmp_path / "cache", {"a": members, "b": twice}))
    assert undecodable == [
        "shard a.tar, key 'b': image is TRUNCATED (3)",
        "shard a.tar, key 'c': image is EMPTY (1)",
        "shard a.tar, key 'd': image is NOT_AN_IMAGE (2)",
    ]
    assert "has two members 'jpg'" in repeated


def test_files_that_are_missing_or_cut_off(cache):
    (cache / "train-0.tar").unlink()
    (cache / "train-1.idx").unlink()
    nbytes = 100 + second_sample(cache, "train-2")
    os.truncate(cache / "train-2.tar", nbytes)
    tar, idx, size, headers, index = found(cache)
    assert tar == "shard train-0.tar: it cannot be read: No such file or directory"
    assert idx == "shard train-1.tar: its index train-1.idx cannot be read: No such file or directory"
    assert size.startswith(f"shard train-2.tar: it has {nbytes} bytes instead of ")
    assert "truncated" in headers
    assert "train-2.idx is damaged in line 3: a member is outside of the tar" in index


def test_indexes_that_differ_from_the_tar(cache):
    changed, other, short = (cache / f"train-{shard}.idx" for shard in range(3))
    lines = changed.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b" 7 ", b" 8 ").replace(b" 1 ", b" 2 ")
    changed.write_bytes(b"\n".join(lines))
    other.write_bytes(short.read_bytes())
    short.write_bytes(short.read_bytes().replace(b"v1.2 4", b"v1.2 3").rsplit(b"\n", 2)[0] + b"\n")
    problems = verify_cache(cache, 0).problems
    assert [(problem.shard, problem.key) for problem in problems] == [
        *[("train-0.tar", ""), ("train-0.tar", "f/k01")],
        *[("train-1.tar", ""), ("train-1.tar", "f/k10")],
        *[("train-2.tar", ""), ("train-2.tar", "")],
    ]
    assert problems[1].what.startswith("the index has 'f/k01' [('jpg', ")
    assert problems[3].what.startswith("the index has 'f/k20' [('jpg', ")
    assert problems[5].what == "the index has 3 samples, the tar 4"


def test_wrong_counts_and_files_that_do_not_belong_there(cache):
    path = cache / "manifest.json"
    content = json.loads(path.read_bytes())
    content["samples"] += 1
    content["tiles"]["32"] += 1
    content["shards"][1]["samples"] += 1
    content["shards"][1]["tiles"]["32"] += 1
    path.write_text(json.dumps(content))
    plain(cache / "extra.tar")
    (cache / "notes.txt").touch()
    report = verify_cache(cache, 0)
    assert set(report.bad_shards) == {"train-1.tar", "extra.tar"} and report.extra == ("notes.txt",)
    counts, tar, notes, summary = summarise_check(report)
    assert counts == "shard train-1.tar: it has 3 samples instead of 4 as in manifest.json"
    assert tar == "shard extra.tar: it is in the folder, but not in manifest.json"
    assert "notes.txt" in notes and "3 shards, 2 BAD" in summary
    assert summary.endswith("; delete train-1.tar, extra.tar in the folder, then run the build again")


@pytest.mark.slow
def test_the_problems_do_not_depend_on_the_number_of_processes(cache):
    for name in ("train-0", "train-2"):
        change(cache / f"{name}.tar", 700, b"\xff" * 9)
    seen = []
    report = verify_cache(cache, 2, progress=seen.append)
    assert report.bad_shards == ("train-0.tar", "train-2.tar")
    assert report.problems == verify_cache(cache, 0).problems
    assert [now.shards for now in seen] == [1, 2, 3]
    assert (seen[-1].samples, seen[-1].bytes, seen[-1].quarantined) == (10, report.bytes, 2)


def test_no_finished_cache(tmp_path):
    with pytest.raises(tarpeg.CacheError, match="no cache"):
        verify_cache(tmp_path)
    (tmp_path / ".building").mkdir()
    with pytest.raises(tarpeg.CacheError, match="unfinished"):
        verify_cache(tmp_path)


def with_boxes():
    """Members of four samples: one with good boxes, and three that are broken in one way each."""
    box = {"bbox": [1, 2, 30, 20], "category_id": 1}
    given = [[box], [box, {**box, "bbox": [1, 2, 0, 20]}], [{**box, "bbox": [500, 2, 30, 20]}], None]
    members = []
    for number, objects in enumerate(given):
        members.append((f"k{number}.jpg", jpeg(number)))
        if objects is not None:
            members.append((f"k{number}.json", json.dumps({"objects": objects}).encode()))
    return members


def test_broken_targets_are_listed_and_no_problem_of_the_cache(tmp_path):
    members = with_boxes()
    cache = make_cache(tmp_path / "cache", {"train-0": members})
    boxes = tarpeg.Boxes("json:objects")
    for targets in (boxes, [boxes], {"boxes": boxes}):
        report = verify_cache(cache, 0, targets=targets)
        assert report.is_good
        assert [(each.shard, each.key) for each in report.broken_targets] == [
            ("train-0.tar", f"k{number}") for number in (1, 2, 3)
        ]
        fields = ("objects.1.bbox", "objects.0.bbox", "json")
        assert all(field in each.what for field, each in zip(fields, report.broken_targets, strict=True))
    lines = summarise_check(report)
    assert "broken" in lines[0] and lines[0].endswith(": 3") and "objects.1.bbox" in lines[1]
    assert not verify_cache(cache, 0).broken_targets


@pytest.mark.sweep
@pytest.mark.parametrize("executor", [0, 2])
def test_a_build_counts_broken_targets_also_of_shards_that_are_there(tmp_path, executor):
    """The same shards with targets and without, and the same report from the second build on."""
    members = with_boxes()
    (tmp_path / "source").mkdir()
    for name, part in (("b", members[4:]), ("a", members[:4])):
        write_tar(tmp_path / "source" / f"{name}.tar", part)
    source, boxes = str(tmp_path / "source"), tarpeg.Boxes("json:objects")
    kept = tarpeg.build_cache(source, tmp_path / "plain", executor=0)
    assert not kept.broken_targets and cache_targets.BROKEN_TARGET not in kept.findings
    reports = [
        tarpeg.build_cache(source, tmp_path / dest, executor=executor, targets=targets)
        for dest, targets in (("plain", boxes), ("cache", [boxes, boxes]), ("cache", {"boxes": boxes}))
    ]
    assert [report.built for report in reports] == [0, 2, 0]
    for report in reports:
        found = [(each.shard, each.key) for each in report.broken_targets]
        assert [*dict.fromkeys(found)] == [("a.tar", "k1"), ("b.tar", "k2"), ("b.tar", "k3")]
        finding = report.findings[cache_targets.BROKEN_TARGET]
        assert (finding.samples, finding.shard, finding.key) == (3, "a.tar", "k1")
        assert "objects.1.bbox" in finding.content and report.samples == 4
        (line,) = [line for line in summarise_build(report) if cache_targets.BROKEN_TARGET in line]
        assert ": 3 of 4, the first is key 'k1' of a.tar: member 'json', field 'objects.1.bbox'" in line
    for name in ("a.tar", "b.tar", "manifest.json"):
        plain_one, other = (tmp_path / dest / name for dest in ("plain", "cache"))
        assert plain_one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        (
            "shard a.tar, key 'b' has no member 'png', only ['jpg']. Write",
            "has no member 'png', only ['jpg']. Write",
        ),
        ("shard a.tar, key 'b': member 'json', field 'a' is 1", "member 'json', field 'a' is 1"),
        ("something else", "something else"),
    ],
)
def test_reports_of_targets_have_what_is_wrong(reason, what):
    assert cache_targets._without_place(reason) == what

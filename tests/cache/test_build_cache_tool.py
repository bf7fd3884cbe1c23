"""tools/build_cache.py and the texts of tarpeg.cache.report: summaries, progress, one-line errors."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from helpers.pictures import jpeg, picture
from helpers.scripts import run_tool
from helpers.small_tars import sample
from tarpeg import Raw, Tiled, build_cache
from tarpeg.cache.build import CacheReport, Progress
from tarpeg.cache.report import progress_bar, summarise_build
from tarpeg_hydra.overrides import with_overrides

tool = partial(run_tool, "build_cache")


@pytest.mark.slow
def test_build_and_summary(photos, tmp_path):
    pattern = f'source="{photos}/{{a,b}}.tar"'
    done = tool(pattern, f"dest={tmp_path}/c", "codec=resized", "codec.shorter=48", "workers=0")
    assert done.returncode == 0 and done.stderr == ""
    first, size, tiles, speed = done.stdout.splitlines()
    assert first.startswith(f"{tmp_path}/c: 23 samples in 2 shards, 2 of them written now, in ")
    assert size.startswith("size: ") and tiles.startswith("images by width of tile: ")
    assert "us before" in speed and "times as fast (13 images, one thread)" in speed
    again = tool(pattern, f"dest={tmp_path}/c", "codec=resized", "codec.shorter=48", "measure=false")
    assert "0 of them written now" in again.stdout and "us before" not in again.stdout
    other = tool(pattern, f"dest={tmp_path}/c")
    assert other.returncode == 1 and other.stderr.endswith("or build with replace=true\n")


@pytest.mark.slow
def test_verification(photos, tmp_path):
    build_cache(photos, tmp_path / "c", executor=0)
    done = tool("verify=true", f"dest={tmp_path}/c", "workers=0")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path}/c: 2 shards, all good")
    (tmp_path / "c" / "b.tar").unlink()
    done = tool("verify=true", f"dest={tmp_path}/c")
    problem, summary = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "") and "2 shards, 1 BAD" in summary
    assert problem == "shard b.tar: it cannot be read: No such file or directory"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dest=x"], "source is not set: give source=..."),
        (["verify=true"], "dest is not set: give dest=..."),
        (["verify=true", "dest=nowhere"], "nowhere holds no cache"),
        (["source=/x/a-{000..009}.tar", "dest=x"], "source has braces without quotes"),
        (["source=/nothing/a.tar", "dest=x"], "shard /nothing/a.tar does not exist"),
        (["source=x", "dest=x", "codec=resized"], "codec.shorter is not set"),
        (["source=x", "dest=x", "codec=raw", "codec.shorter=0"], "codec: shorter=0 must be"),
        (["source=x", "dest=x", "executor=dask"], "address=None must be that of a Dask scheduler"),
        (["source=x", "dest=x", "executor=slurm"], "executor=slurm must be local or dask"),
    ],
)
def test_mistakes_end_in_one_line(tmp_path, arguments, message):
    done = tool(*arguments, cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("build_cache: ") and message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_summary_contains_untiled_and_excluded_images(shard_of, tmp_path):
    path = shard_of(*[sample(n) for n in range(5)], sample(5, b"no image"))
    report = build_cache(path, tmp_path / "c", Raw(), 0, max_bad=0.5)
    lines = summarise_build(report, measure=True)
    assert lines[2] == "stored as pixels: 5 images (100.0%)"
    left_out = "left out: 1 sample, listed in manifest.json, such as key 'k0005'"
    assert lines[3] == f"{left_out} of {path}: it begins with b'no image', as no supported format does"
    assert "(5 images, one thread)" in lines[4]


def test_many_widths_of_tiles_take_one_line(tmp_path):
    tiles = {**dict.fromkeys(range(100, 110), 1), 32: 90}
    line = summarise_build(CacheReport(tmp_path, 1, 1, 100, 1000, 1010, tiles, {}, (), 1.0))[2]
    assert line.startswith("images by width of tile: 32 px: 90.0%, 100 px: 1.0%")
    assert line.endswith("107 to 109 px: 3.0%")
    tiles = {32: 91, **dict.fromkeys(range(40, 48), 1)}
    line = summarise_build(CacheReport(tmp_path, 1, 1, 99, 1000, 1010, tiles, {}, (), 1.0))[2]
    assert line.endswith(", 46 px: 1.0%, 47 px: 1.0%"), "the last of nine is no range"


def test_the_summary_counts_files_that_became_jpegs(shard_of, tmp_path):
    files = [(picture("PNG"), "png"), (picture("PNG"), "jpg"), (picture("WEBP"), "webp"), (None, "jpg")]
    path = shard_of(*(sample(number, *file) for number, file in enumerate(files)))
    for _ in range(2):  # the second build converts nothing
        report = build_cache(path, tmp_path / "c", Tiled(quality=90), 0)
        lines = [line for line in summarise_build(report) if "encoded" in line]
        assert lines == ["encoded as JPEG, quality 90: 2 PNG, 1 WEBP"] * (report.built > 0)
    lossless = summarise_build(build_cache(path, tmp_path / "pixels", executor=0))
    (line,) = [with_overrides(line) for line in lossless if line.startswith("stored as pixels: 3 images")]
    assert line.endswith("build_cache.py source=... dest=... codec=tiled codec.quality=95`")
    report = dataclasses.replace(report, shards=2, built=1, converted={"PNG": 1})
    assert "encoded as JPEG, quality 90: 1 PNG, in the shards written now" in summarise_build(report)


def test_the_summary_of_a_folder_without_val_shows_how_to_train(tmp_path):
    (tmp_path / "root" / "train" / "cat").mkdir(parents=True)
    (tmp_path / "root" / "train" / "cat" / "a.jpg").write_bytes(jpeg("420", 64, 80))
    for source, is_split in (("root/train", False), ("root", True)):
        (last,) = summarise_build(build_cache(tmp_path / source, tmp_path / "c" / source, executor=0))[-1:]
        assert last.startswith("not split: ") is not is_split
        assert is_split or with_overrides(last).endswith("train with data.val=null, or make these")


def test_the_progress_bar_leaves_standard_output_alone(capsys):
    with progress_bar() as show:
        show(Progress(1, 3, 1, 10, 1000, 3000, 0))
        show(Progress(2, 3, 1, 20, 2000, 3000, 0))
    assert capsys.readouterr().out == ""

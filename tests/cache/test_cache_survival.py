"""Killed builds, concurrent builds, other executors, bounded memory: always the same bytes."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from helpers.pictures import jpeg
from helpers.scripts import PATHS, SESSION, live_processes, run_script
from helpers.small_caches import contents
from helpers.small_tars import write_tar
from tarpeg import CacheError, Layout, ShardError, Tiled, build_cache
from tarpeg.cache import job, sources
from tarpeg.cache.verify import verify_cache
from tarpeg.processes import dask_executor

pytestmark = pytest.mark.slow
TOGETHER = pytest.mark.xdist_group("whole")  # in one process, which builds the undisturbed caches once
# Without a main guard, as scripts of users.
BUILD = """
import json
from tarpeg import Layout, Tiled, build_cache
source, dest, tile, layout = json.loads(sys.argv[1])
print(build_cache(source, dest, Tiled(tile), 2, layout=Layout(**layout)).built)
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """More shards than five killed builders can finish, even on a fast machine, of the same images."""
    folder = tmp_path_factory.mktemp("many")
    photos = [jpeg("420", 400, 600, seed) for seed in range(20)]
    for shard in range(32):
        members = []
        for number in range(20):
            key = f"{shard:02d}/{number:04d}"
            members += [(f"{key}.jpg", photos[(shard + number) % 20]), (f"{key}.cls", b"1")]
        write_tar(folder / f"s{shard:02d}.tar", members)
    return folder


@pytest.fixture(scope="module")
def source(many) -> str:
    """Sixteen shards."""
    return f"{many}/s{{00..15}}.tar"


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    """Contents of the cache of an undisturbed build: whole(tile=32, **layout)."""

    @functools.cache
    def undisturbed(tile: int = 32, **layout) -> dict[str, bytes]:
        folder = tmp_path_factory.mktemp("whole") / "cache"
        build_cache(source, folder, Tiled(tile), 0, layout=Layout(**layout))
        return contents(folder)

    return undisturbed


def start(source: Path | str, dest: Path, tile: int = 32, **layout) -> subprocess.Popen[str]:
    """Start a build in a new process and process group."""
    command = [sys.executable, "-c", PATHS + BUILD, json.dumps([str(source), str(dest), tile, layout])]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen(command, **options)


def wait_for(what, process: subprocess.Popen[str]) -> None:
    while not what() and process.poll() is None:
        time.sleep(0.005)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "layout", [{}, {"samples_per_shard": 17, "shuffle": True}], ids=["as it is", "shuffled"]
)
def test_kill_9_at_ten_moments(many, tmp_path, layout):
    """Five for each layout."""
    build_cache(many, tmp_path / "whole", Tiled(32), 0, layout=Layout(**layout))
    folder, reference, draw = tmp_path / "cache", contents(tmp_path / "whole"), random.Random(len(layout))
    finished: set[str] = set()
    for attempt in range(5):
        builder = start(many, folder, **layout)
        seen = set((folder / ".building").glob("*.tmp"))
        wait_for(lambda seen=seen: set((folder / ".building").glob("*.tmp")) - seen, builder)
        moment = time.monotonic() + draw.uniform(0, 0.25)
        enough = len(finished) + 2  # a fast machine is killed earlier, not after more work
        wait_for(
            lambda at=moment, most=enough: time.monotonic() > at or len(list(folder.glob("*.tar"))) > most,
            builder,
        )
        if attempt % 2:
            os.killpg(builder.pid, signal.SIGKILL)
        else:  # the workers live on for a while, while the next builder works
            builder.kill()
        builder.communicate()
        now = {path.name for path in folder.glob("*.tar")}
        assert finished <= now, "a finished shard was lost"
        assert all((folder / name).read_bytes() == reference[name] for name in now), "a shard is not whole"
        assert not (folder / "manifest.json").exists()
        finished = now
    assert len(finished) < len(reference) // 2, "the build ended before the last of the five"
    last = start(many, folder, **layout)
    out, error = last.communicate()
    assert last.returncode == 0, error
    assert int(out) <= len(reference) // 2 - len(finished)
    assert contents(folder) == reference and verify_cache(folder, 0).is_good
    assert {path.name for path in folder.iterdir()} - set(reference) == {".build.lock", ".commit.lock"}


@TOGETHER
def test_two_builders_at_once(source, whole, tmp_path):
    def run(*tiles: int) -> list[tuple[str, str]]:
        builders = [start(source, tmp_path / "cache", tile) for tile in tiles]
        results = [builder.communicate() for builder in builders]
        assert [builder.returncode for builder in builders] == [0, 0], results
        return sorted(results)

    (waiting, warning), working = run(32, 32)
    assert waiting == "0\n" and "another builder is at work" in warning
    assert working == ("16\n", "")
    assert contents(tmp_path / "cache") == whole()
    shutil.rmtree(tmp_path / "cache")
    results = [builder.communicate() for builder in [start(source, tmp_path / "cache", n) for n in (64, 16)]]
    assert sum("choose another folder" in error for _, error in results) == 1, "the second keeps the first's"
    assert contents(tmp_path / "cache") in (whole(64), whole(16))


@TOGETHER
def test_workers_of_a_killed_builder_end_and_do_not_damage_the_next_cache(source, whole, tmp_path):
    folder, sessions = tmp_path / "cache", []
    for _ in range(3):
        builder = start(source, folder, 64)
        wait_for(lambda: list((folder / ".building").glob("*.tmp")), builder)
        builder.kill()
        builder.wait()
        build_cache(source, folder, Tiled(16), 0)
        assert contents(folder) == whole(16)
        sessions.append(builder.pid)
    time.sleep(3)
    assert not any(live_processes(SESSION, session) for session in sessions)
    assert contents(folder) == whole(16)


MEMORY = """
import resource
from tarpeg import Layout, build_cache
peaks = []
for shards in sources:
    for name, layout in (("whole", Layout()), ("cut", Layout(samples_per_shard=20, shuffle=True))):
        build_cache(shards, f"{folder}/{name}{len(shards)}", executor=0, layout=layout)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
print(*peaks)
"""


def test_memory_does_not_grow_with_the_source(tmp_path):
    """Two shards of 20 MB, then thirty: 600 MB."""
    members = []
    for number in range(20):
        members += [(f"{number}.jpg", jpeg("420", 64, 80, number)), (f"{number}.bin", os.urandom(1 << 20))]
    paths = [write_tar(tmp_path / "00.tar", members)]
    for number in range(1, 30):
        paths.append(tmp_path / f"{number:02d}.tar")
        shutil.copyfile(paths[0], paths[-1])  # a link would be the same shard
    sources = [[str(path) for path in paths[:count]] for count in (2, 30)]
    done = run_script(f"sources, folder = {sources!r}, {str(tmp_path)!r}\n{MEMORY}")
    assert done.returncode == 0, done.stderr
    small, large = map(int, done.stdout.split())
    assert large - small < 64, (small, large, done.stderr)


def test_a_job_of_another_build_is_dropped(source, tmp_path):
    folder = tmp_path / "cache"
    (folder / ".building").mkdir(parents=True)
    shard = sources.list_source(source)[0]
    work = job.ShardJob(str(folder), "s00", sources.WholeShard(shard), Tiled(), "mine")
    (folder / ".building" / "build.fingerprint").write_text('{"fingerprint": "another"}')
    with pytest.raises(CacheError, match="another build"):
        job.run_job(work)
    (folder / ".building" / "build.fingerprint").unlink()
    with pytest.raises(CacheError, match="fingerprint"):
        job.run_job(work)
    assert not list(folder.rglob("*.t*"))


@TOGETHER
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_pools_of_the_standard_library(source, whole, tmp_path, method):
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as pool:
        build_cache(source, tmp_path / "cache", executor=pool)
    assert contents(tmp_path / "cache") == whole()


@TOGETHER
def test_dask(source, many, whole, tmp_path):
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    layout = {"samples_per_shard": 17, "shuffle": True}
    with distributed.LocalCluster(**options) as cluster, dask_executor(cluster.scheduler_address) as executor:
        report = build_cache(source, tmp_path / "cache", executor=executor)
        assert report.built == 16 and contents(tmp_path / "cache") == whole()
        build_cache(source, tmp_path / "shuffled", executor=executor, layout=Layout(**layout))
        assert contents(tmp_path / "shuffled") == whole(**layout)
        broken = tmp_path / "broken.tar"
        broken.write_bytes((many / "s03.tar").read_bytes()[:30_000])
        with pytest.raises(ShardError, match=r"broken\.tar"):
            build_cache([broken, source], tmp_path / "after", executor=executor)
        build_cache(source, tmp_path / "after", executor=executor)
        assert contents(tmp_path / "after") == whole()

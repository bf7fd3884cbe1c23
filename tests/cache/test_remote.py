"""Sources behind URLs, on servers on this machine: S3 (moto), http with and without ranges."""

from __future__ import annotations

import contextlib
import http.server
import io
import logging
import os
import re
import socket
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest
from helpers.loaders import keys_of, load
from helpers.small_caches import shard_files
from helpers.small_tars import sample, write_tar
from tarpeg import Layout, Resized, ShardError, build_cache, progress
from tarpeg.cache import remote, sources
from tarpeg.shards import urls

pytest.importorskip("fsspec")


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """Three shards of 11 samples."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(3):
        numbers = range(11 * shard, 11 * shard + 11)
        write_tar(folder / f"t-{shard:03d}.tar", [m for n in numbers for m in sample(n)])
    return folder


@pytest.fixture
def local(shards, tmp_path):
    """Build the same cache from local files, to compare: local(layout=...) -> its shards."""

    def build(**options) -> dict[str, bytes]:
        build_cache(shards, tmp_path / "local", executor=0, **options)
        return shard_files(tmp_path / "local")

    return build


# --- http


class Plain(http.server.SimpleHTTPRequestHandler):
    """Python's server, which lacks ranges."""

    def log_message(self, *_):
        pass


class Ranges(Plain):
    """With the ranges of most other servers. requests: path and range of each, of the current test."""

    requests: ClassVar[list[tuple[str, str]]] = []

    def send_head(self):
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.requests.append((self.path, asked[0] if asked else ""))
        path = Path(self.translate_path(self.path))
        if asked is None or not path.is_file():
            return super().send_head()
        start, stop = int(asked[1]), min(int(asked[2]) + 1, path.stat().st_size)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{path.stat().st_size}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "GET":
            with path.open("rb") as file:
                file.seek(start)
                self.wfile.write(file.read(stop - start))
        return None


@pytest.fixture
def serve(shards):
    """Serve the shards over http: serve(handler) -> URL of the folder."""
    Ranges.requests.clear()
    with contextlib.ExitStack() as stack:

        def start(handler) -> str:
            handler = partial(handler, directory=str(shards))
            server = stack.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_port}"

        yield start


@pytest.mark.sweep
@pytest.mark.parametrize("handler", [Ranges, Plain])
@pytest.mark.parametrize("pattern", ["/t-{000..002}.tar", "/", "/t-*.tar"])
def test_http(serve, local, tmp_path, handler, pattern):
    report = build_cache(serve(handler) + pattern, tmp_path / "cache", executor=0)
    assert report.samples == 33 and shard_files(tmp_path / "cache") == local()


@pytest.mark.slow
def test_http_in_worker_processes_and_a_second_run(serve, local, tmp_path):
    url = serve(Plain) + "/t-{000..002}.tar?signature=secret"
    assert build_cache(url, tmp_path / "cache", executor=2).built == 3
    assert shard_files(tmp_path / "cache") == local()
    assert build_cache(url.replace("secret", "other"), tmp_path / "cache", executor=0).built == 0
    assert b"secret" not in (tmp_path / "cache" / "manifest.json").read_bytes()


@pytest.mark.sweep
@pytest.mark.parametrize("shuffle", [True, False])
def test_http_with_other_layouts(serve, local, tmp_path, shuffle):
    layout = Layout(samples_per_shard=7, shuffle=shuffle)
    build_cache(serve(Ranges) + "/t-{000..002}.tar", tmp_path / "cache", executor=0, layout=layout)
    assert shard_files(tmp_path / "cache") == local(layout=layout)
    with pytest.raises(ShardError, match=r"t-000\.tar: "):
        build_cache(serve(Plain) + "/t-{000..002}.tar", tmp_path / "none", executor=0, layout=layout)


def test_a_shard_is_read_in_chunks_and_ahead(serve, shards, monkeypatch):
    monkeypatch.setattr(remote, "_CHUNK", 5000)
    (shard,) = sources.list_source(serve(Ranges) + "/t-000.tar")
    (here,) = sources.list_source(shards / "t-000.tar")
    there = [sample.members for sample in sources.WholeShard(shard).read()]
    assert there == [sample.members for sample in sources.WholeShard(here).read()]
    assert len(Ranges.requests) > shard.nbytes // 5000
    reader = sources.WholeShard(shard).read()
    next(reader)
    reader.close()


@pytest.mark.sweep
@pytest.mark.parametrize("layout", [Layout(), Layout(samples_per_shard=7, shuffle=True)], ids=str)
@pytest.mark.parametrize("executor", [0, 2])
def test_an_object_that_is_replaced_while_it_is_read_is_an_error(shards, serve, tmp_path, layout, executor):
    """The ETag changes after the first byte was read."""
    tag = "one"

    class Replaced(Ranges):
        def send_response(self, code, message=None):
            nonlocal tag
            super().send_response(code, message)
            self.send_header("ETag", tag)
            # The second byte is requested to find out whether the server has ranges.
            if self.command == "GET" and self.headers.get("Range") == "bytes=1-1":
                tag = "two"

    with pytest.raises(ShardError, match=r"t-000\.tar changed"):
        build_cache(serve(Replaced) + "/t-000.tar", tmp_path / "cache", executor=executor, layout=layout)
    assert not list((tmp_path / "cache").glob("*.tar"))


def test_a_local_shard_that_changes_while_it_is_read_is_an_error(shard_of):
    path = shard_of(sample(0), sample(1))
    (shard,) = sources.list_source(path)
    reader = sources.WholeShard(shard).read()
    next(reader)
    os.utime(path, ns=(0, 0))
    with pytest.raises(ShardError, match=r"x\.tar changed"):
        list(reader)
    path = shard_of(sample(0), sample(1), sample(2, bytes(300_000)))
    (shard,) = sources.list_source(path)
    reader = sources.WholeShard(shard).read()
    next(reader)
    os.truncate(path, 200_000)
    with pytest.raises(ShardError, match=r"^shard /.*/x\.tar .*byte 200000"):
        list(reader)


def test_one_warning_if_the_server_sends_no_version(serve, tmp_path):
    class Silent(Ranges):
        def send_header(self, keyword, value):
            if keyword != "Last-Modified":
                super().send_header(keyword, value)

    with pytest.warns(UserWarning, match=r"3 shards.*t-000\.tar.* ETag") as warned:
        build_cache(serve(Silent) + "/t-{000..002}.tar", tmp_path / "cache", executor=0)
    assert len(warned) == 1


@pytest.fixture
def hurry(monkeypatch):
    """Wait for tenths of seconds instead of minutes."""
    monkeypatch.setattr(urls, "_SECONDS", 0.3)
    monkeypatch.setattr(progress, "SAY_EVERY", 0.1)
    monkeypatch.setattr(urls, "_PAUSES", (0.01, 0.02, 0.04))


def stalling(often: int) -> type[Ranges]:
    """Return a server whose first answers with a range stop after their headers, for a second."""
    left = [often]

    class Stalling(Ranges):
        def send_head(self):
            self.is_stalled = "Range" in self.headers and self.path.endswith("t-001.tar") and left[0] > 0
            return super().send_head()

        def end_headers(self):
            super().end_headers()
            if self.is_stalled:
                left[0] -= 1
                self.wfile.flush()
                threading.Event().wait(1)
                self.connection.shutdown(socket.SHUT_RDWR)
                self.wfile = io.BytesIO()

    return Stalling


@pytest.mark.sweep
@pytest.mark.parametrize(
    "layout", [Layout(), Layout(samples_per_shard=7, shuffle=True)], ids=["whole", "parts"]
)
def test_a_server_that_stops_answering_for_a_while(serve, local, tmp_path, hurry, caplog, layout):
    with caplog.at_level(logging.WARNING, "tarpeg"):
        build_cache(serve(stalling(3)) + "/t-{000..002}.tar", tmp_path / "cache", executor=0, layout=layout)
    assert shard_files(tmp_path / "cache") == local(layout=layout)
    assert re.search(r"waiting for http://[\d.:]+/t-001\.tar, since", caplog.text)
    assert re.search(r"t-00\d\.tar: no answer for 0\.3 s; next try in 0\.01 s", caplog.text)


def test_a_server_that_never_answers_again_is_an_error_in_time(serve, tmp_path, hurry):
    started = time.monotonic()
    with pytest.raises(ShardError, match=r"t-001\.tar .*: no answer .*0\.3 s"):
        build_cache(serve(stalling(99)) + "/t-001.tar", tmp_path / "cache", executor=0)
    assert time.monotonic() - started < 15  # four tries of 0.3 s


@pytest.mark.parametrize("often", [2, 99])
def test_a_server_that_is_busy_at_the_first_question_is_asked_again(serve, local, tmp_path, hurry, often):
    left = [2 * often]  # fsspec asks by HEAD, then by GET

    class Busy(Ranges):
        def send_head(self):
            if left[0] > 0 and self.path.endswith(".tar"):
                left[0] -= 1
                self.send_error(503)
                return None
            return super().send_head()

    source = serve(Busy) + "/t-001.tar"
    if often > 3:
        with pytest.raises(ShardError, match=r"t-001\.tar cannot be read: 503 Service Unavailable"):
            build_cache(source, tmp_path / "cache", executor=0)
        return
    build_cache(source, tmp_path / "cache", executor=0)
    assert local()["t-001.tar"] in shard_files(tmp_path / "cache").values()


def test_what_another_try_cannot_mend_is_not_tried_again(serve, tmp_path, hurry, caplog):
    class Gone(Ranges):
        def do_GET(self):
            Ranges.requests.append((self.path, ""))
            self.send_error(403)

    with caplog.at_level(logging.WARNING, "tarpeg"), pytest.raises(ShardError, match="403 Forbidden"):
        build_cache(serve(Gone) + "/t-001.tar", tmp_path / "cache", executor=0)
    assert "next try" not in caplog.text


@pytest.mark.parametrize("cut", [500, 20_000])
def test_a_broken_connection_is_an_error_with_the_shard(shards, serve, tmp_path, cut):
    class Broken(Plain):
        def copyfile(self, source, outputfile):
            outputfile.write(source.read(cut))
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(ShardError, match=r"t-000\.tar"):
        build_cache(serve(Broken) + "/t-000.tar", tmp_path / "cache", executor=0)
    assert not list((tmp_path / "cache").glob("*.tar"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:9/a.tar", r"127\.0\.0\.1:9/a\.tar cannot be read: .*onnect"),
        ("http://u:secret@127.0.0.1:9/a.tar?k=secret", r"127\.0\.0\.1:9/a\.tar cannot be read"),
        ("nonsense://a/b.tar", "nonsense.* cannot be opened"),
        ("memory://empty/a-*.tar", "matches no shard"),
        ("http://x/a-{000.tar", "braces do not match"),
        ("pipe:curl http://x/a.tar?k=secret", "source='pipe:.*Give a URL"),
        ("memory://empty/a.tar", r"memory://empty/a\.tar cannot be read: it was not found"),
    ],
)
def test_urls_that_cannot_be_read(tmp_path, url, message):
    with pytest.raises(ShardError, match=message) as caught:
        build_cache(url, tmp_path / "cache", executor=0)
    assert "secret" not in str(caught.value)


def test_urls_that_differ_in_their_query_alone(shards, serve, tmp_path):
    url = serve(Plain) + "/t-000.tar"
    with pytest.raises(ShardError, match=r"t-000\.tar has two URLs that differ in the query") as caught:
        build_cache([url + "?k=secret", url + "?k=other"], tmp_path / "cache", executor=0)
    assert "secret" not in str(caught.value)
    with pytest.raises(ShardError, match=r"t-000\.tar is there twice"):
        build_cache([url, url], tmp_path / "cache", executor=0)


def test_an_error_of_http_is_named(serve, tmp_path):
    for handler in (Plain, Ranges):
        with pytest.raises(ShardError, match=r"t-009\.tar.* 404 "):
            build_cache(serve(handler) + "/t-009.tar", tmp_path / "cache", executor=0)


def test_any_file_system_of_fsspec(shards, local, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in shards.glob("*.tar"):
        memory.pipe(f"/bucket/{path.name}", path.read_bytes())
    try:
        build_cache("memory://bucket", tmp_path / "cache", executor=0)
        assert shard_files(tmp_path / "cache") == local()
        memory.pipe("/bucket/photos/cat/a.jpg", b".")
        for folder, entry in (("photos/", "cat"), ("photos/cat", "a.jpg")):
            message = (
                rf"/{folder}' is a folder without a \.tar, but with '{entry}'\. .*must be local: copy it"
            )
            with pytest.raises(ShardError, match=message):
                build_cache(f"memory://bucket/{folder}", tmp_path / "images", executor=0)
        mixed = ["memory://bucket/t-000.tar", shards / "t-001.tar", "memory://bucket/t-002.tar"]
        build_cache(mixed, tmp_path / "mixed", executor=0, layout=Layout(samples_per_shard=7, shuffle=True))
        assert shard_files(tmp_path / "mixed") == local(layout=Layout(samples_per_shard=7, shuffle=True))
    finally:
        memory.rm("/bucket", recursive=True)


# --- S3


@pytest.fixture(scope="module")
def s3(shards):
    """A bucket "photos" with the shards below train/, on a moto server; sets the environment for fsspec."""
    boto3 = pytest.importorskip("boto3")
    pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    settings = {
        "AWS_ENDPOINT_URL": "http://{}:{}".format(*server.get_host_and_port()),
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with mock.patch.dict(os.environ, settings):
        client = boto3.client("s3")
        client.create_bucket(Bucket="photos")
        for path in shards.glob("*.tar"):
            client.upload_file(str(path), "photos", f"train/{path.name}")
        yield client
    server.stop()


def test_an_s3_server_that_never_answers_is_an_error_in_time(serve, tmp_path, hurry, monkeypatch, caplog):
    """Four tries of at most two requests each, where s3fs and botocore together make 125."""
    s3fs = pytest.importorskip("s3fs")

    class Bucket(stalling(999)):
        def translate_path(self, path):
            return super().translate_path(path.removeprefix("/photos/train"))

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(Bucket))
    s3fs.S3FileSystem.clear_instance_cache()
    started = time.monotonic()
    text = r"s3://photos/train/t-001\.tar cannot be read"
    with caplog.at_level(logging.WARNING, "tarpeg"), pytest.raises(ShardError, match=text):
        build_cache("s3://photos/train/t-001.tar", tmp_path / "cache", executor=0)
    s3fs.S3FileSystem.clear_instance_cache()
    assert time.monotonic() - started < 30
    assert 4 <= len([path for path, asked in Ranges.requests if asked]) <= 8
    assert "next try in 0.01 s" in caplog.text and "waiting for s3://photos" in caplog.text


def test_only_an_index_error_that_s3fs_raises_for_another_is_one_of_the_server(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", sys)
    with pytest.raises(IndexError), urls.shard_errors("s3://photos/a.tar"):
        [].pop()
    with (
        pytest.raises(ShardError, match=r"a\.tar cannot be read: no answer"),
        urls.shard_errors("s3://photos/a.tar"),
    ):
        try:
            raise TimeoutError
        except TimeoutError as error:
            error.args[0]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["train", "train/t-*.tar", "train/t-{000..002}.tar"])
def test_s3(s3, local, tmp_path, pattern):
    build_cache(f"s3://photos/{pattern}", tmp_path / "cache", executor=0)
    assert shard_files(tmp_path / "cache") == local()


@pytest.mark.slow
def test_s3_in_worker_processes_with_another_layout_and_after_a_change(s3, shards, local, tmp_path):
    layout, folder = Layout(samples_per_shard=10, shuffle=True), tmp_path / "cache"
    report = build_cache("s3://photos/train", folder, Resized(shorter=40), 2, layout=layout)
    assert (report.shards, report.samples) == (4, 33)
    assert shard_files(folder) == local(codec=Resized(shorter=40), layout=layout)
    assert build_cache("s3://photos/train", tmp_path / "whole", executor=2).built == 3
    assert build_cache("s3://photos/train", tmp_path / "whole", executor=2).built == 0
    s3.upload_file(str(shards / "t-002.tar"), "photos", "train/t-001.tar")
    assert build_cache("s3://photos/train", tmp_path / "whole", executor=2).built == 1
    s3.upload_file(str(shards / "t-001.tar"), "photos", "train/t-001.tar")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_s3_globs_as_streams(s3, workers):
    split = partial(load, streaming=True, workers=workers, threads=0, batch_size=8)
    with contextlib.closing(split("s3://photos/train/t-*.tar")) as loader:
        assert sorted(keys_of(loader)) == [f"k{number:04d}" for number in range(33)]
    for url in ("s3://photos/none-*.tar", "s3://nobucket/*.tar", "s3://photos/train/t-00{8,9}.tar"):
        with pytest.raises(ShardError, match=r"none-\*\.tar|nobucket|t-00[89]\.tar cannot be read"):
            list(split(url))


@pytest.mark.slow
def test_s3_errors(s3, tmp_path):
    for url in ("s3://photos/train/t-009.tar", "s3://nobucket/a.tar", "s3://photos/none-*.tar"):
        with pytest.raises(ShardError, match=re.escape(url.rpartition("/")[2])):
            build_cache(url, tmp_path / "cache", executor=0)
    assert os.environ["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1")

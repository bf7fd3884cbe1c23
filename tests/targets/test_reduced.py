"""Targets in pixels, of a cache whose codec has reduced the images: an error, not wrong boxes."""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import threading

import pytest
import tarpeg
from helpers.loaders import load
from helpers.pictures import jpeg
from helpers.small_tars import sample, write_tar
from tarpeg import Boxes, CacheError, InstanceMasks, Keypoints, Split, Whole

HERE = {"workers": 0, "threads": 0}
OBJECT = {"bbox": [6, 5, 10, 5], "category_id": 1, "segmentation": [[6, 5, 16, 5, 16, 10]]}
IN_PIXELS = {
    "Boxes": Boxes("json:objects"),
    "Keypoints": {"points": Keypoints("json:objects", flip_pairs=[], count=1)},
    "InstanceMasks": [tarpeg.PadMask(), InstanceMasks("json:objects")],
}
CODECS = {
    "Resized": tarpeg.Resized(32),
    "Packed": tarpeg.Packed(shorter=32),
    "Raw": tarpeg.Raw(shorter=32),
}


@pytest.fixture
def source(tmp_path):
    text = json.dumps({"objects": [{**OBJECT, "keypoints": [6, 5, 2]}]}).encode()
    members = []
    for number in range(4):
        members += [*sample(number, jpeg("420", 64, 96)), (f"k{number:04d}.json", text)]
    (tmp_path / "source").mkdir()
    write_tar(tmp_path / "source" / "train-0.tar", members)
    return tmp_path / "source"


@pytest.mark.parametrize("kind", CODECS)
def test_targets_in_pixels_are_refused_where_a_cache_is_opened_checked_or_built(source, tmp_path, kind):
    cache, codec = tmp_path / "cache", CODECS[kind]
    tarpeg.build_cache(source, cache, codec, executor=0)
    for name, targets in IN_PIXELS.items():
        what = rf"codec {kind}\(shorter=32\) reduces images.* targets={name}, in pixels .*Packed\(\) or"
        for shards, streaming in ((cache, False), (f"{cache}/train-*.tar", False), (cache, True)):
            split = Split(str(shards), Whole((16, 24)), targets=targets, streaming=streaming)
            with pytest.raises(CacheError, match=rf"the cache {cache}: its {what}"):
                load(None, split=split, **HERE)
        with pytest.raises(CacheError, match=rf"the cache {cache}: its {what}"):
            tarpeg.verify_cache(cache, 0, targets=targets)
        with pytest.raises(CacheError, match=rf"dest='{tmp_path}/new': its {what}"):
            tarpeg.build_cache(source, tmp_path / "new", codec, 0, targets=targets)
    assert not (tmp_path / "new").exists(), "it is said before the build"


def test_whatever_else_is_read_of_a_reduced_cache_goes_on(source, tmp_path):
    tarpeg.build_cache(source, tmp_path / "c", tarpeg.Resized(32), executor=0)
    split = Split(str(tmp_path / "c"), Whole((16, 24)))
    assert next(iter(load(None, split=split, **HERE))).label.tolist()

    class Relative(tarpeg.Target):
        def read(self, source, ids):
            return [json.loads(text)["objects"][0]["bbox"][0] / 96 for text in source.members(ids, "json")]

        def move(self, value, view):
            return view.points([[value * view.sizes[0, 1], 0]])[0, 0]

    class Halved(Boxes):
        def read(self, source, ids):
            return [each._replace(boxes=each.boxes / 2) for each in super().read(source, ids)]

    for targets in (Relative(), Halved("json:objects"), tarpeg.PadMask()):
        split = Split(str(tmp_path / "c"), Whole((16, 24)), targets=targets)
        _, found = next(iter(load(None, split=split, keys=False, **HERE)))
        assert not isinstance(targets, Relative) or found == [1.5] * 4
        assert not isinstance(targets, Halved) or found[0]["boxes"].tolist() == [[1.5, 1.25, 4, 2.5]]


def test_a_cache_of_a_reduced_cache_is_refused_too(source, tmp_path):
    boxes = IN_PIXELS["Boxes"]
    what = r"its codec Resized\(shorter=32\) reduces images.* targets=Boxes, in pixels "
    tarpeg.build_cache(source, tmp_path / "small", tarpeg.Resized(32), executor=0)
    with pytest.raises(CacheError, match=rf"the source, the cache {tmp_path}/small: {what}"):
        tarpeg.build_cache(tmp_path / "small", tmp_path / "new", executor=0, targets=boxes)
    before = tmp_path / "small"
    for name in ("packed", "tiled"):
        cache, codec = tmp_path / name, {"packed": tarpeg.Packed(), "tiled": tarpeg.Tiled()}[name]
        tarpeg.build_cache(before, cache, codec, executor=0)
        with pytest.raises(CacheError, match=rf"the cache {cache}: {what}"):
            load(None, split=Split(str(cache), Whole((16, 24)), targets=boxes), **HERE)
        with pytest.raises(CacheError, match=rf"the cache {cache}: {what}"):
            tarpeg.verify_cache(cache, 0, targets=boxes)
        before = cache
    manifest = json.loads((before / "manifest.json").read_text())
    del manifest["reduced_by"]  # as an early version wrote it: the same build adds it
    (before / "manifest.json").write_text(json.dumps(manifest))
    assert tarpeg.build_cache(tmp_path / "packed", before, tarpeg.Tiled(), executor=0).built == 0
    assert json.loads((before / "manifest.json").read_text())["reduced_by"]["name"] == "Resized"
    tarpeg.build_cache(source, tmp_path / "whole", executor=0)
    assert "reduced_by" not in json.loads((tmp_path / "whole" / "manifest.json").read_text())


def test_a_reduced_cache_on_a_server_is_refused_as_a_stream_and_as_a_source(source, tmp_path):
    pytest.importorskip("aiohttp")
    for name, codec in (("small", tarpeg.Resized(32)), ("whole", tarpeg.Packed())):
        tarpeg.build_cache(source, tmp_path / name, codec, executor=0)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "train-0.tar").write_bytes((source / "train-0.tar").read_bytes())
    (tmp_path / "page" / "manifest.json").write_text("<html>Welcome</html>")  # not of a cache
    boxes = IN_PIXELS["Boxes"]
    with served(tmp_path) as url:
        urls = {
            name: f"{url}/{name}/train-0.tar?Signature=a/b" for name in ("small", "whole", "page", "source")
        }
        for name, shard in urls.items():
            refused = pytest.raises(CacheError, match=rf"cache {url}/{name}: its codec Resized\(shorter=32\)")
            with refused if name == "small" else contextlib.nullcontext():
                load(None, split=Split(shard, Whole((16, 24)), targets=boxes, streaming=True), **HERE)
            with refused if name == "small" else contextlib.nullcontext():
                tarpeg.build_cache(shard, tmp_path / f"of-{name}", executor=0, targets=boxes)


@contextlib.contextmanager
def served(folder):
    """Serve a folder over http; yield its URL."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("codec", [tarpeg.Packed(), tarpeg.Raw(), tarpeg.Tiled()], ids=repr)
def test_a_codec_that_keeps_the_size_keeps_the_boxes(source, tmp_path, codec):
    report = tarpeg.build_cache(source, tmp_path / "c", codec, 0, targets=IN_PIXELS["Boxes"])
    assert not report.broken_targets
    split = Split(str(tmp_path / "c"), Whole((32, 48)), targets=IN_PIXELS["Boxes"])
    _, targets = next(iter(load(None, split=split, keys=False, **HERE)))
    assert targets[0]["boxes"].tolist() == [[3, 2.5, 8, 5]]

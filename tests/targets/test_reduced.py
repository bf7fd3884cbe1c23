"""Targets in pixels, of a cache whose codec has reduced the images: an error, not wrong boxes."""

from __future__ import annotations

import json

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


@pytest.mark.parametrize("codec", [tarpeg.Packed(), tarpeg.Raw(), tarpeg.Tiled()], ids=repr)
def test_a_codec_that_keeps_the_size_keeps_the_boxes(source, tmp_path, codec):
    report = tarpeg.build_cache(source, tmp_path / "c", codec, 0, targets=IN_PIXELS["Boxes"])
    assert not report.broken_targets
    split = Split(str(tmp_path / "c"), Whole((32, 48)), targets=IN_PIXELS["Boxes"])
    _, targets = next(iter(load(None, split=split, keys=False, **HERE)))
    assert targets[0]["boxes"].tolist() == [[3, 2.5, 8, 5]]

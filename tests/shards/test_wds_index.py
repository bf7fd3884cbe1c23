"""The index of a shard: written as by wds2idx, equal to the headers of the tar, or refused."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import tarpeg
from helpers.small_caches import add_index
from helpers.small_tars import cache_home as cache_home, images, sample, write_tar
from hypothesis import given, settings, strategies as st
from tarpeg.shards import index
from tarpeg.shards.index import ShardIndex
from tarpeg.shards.mapped import Shards
from tarpeg.shards.paths import expand
from tarpeg.shards.wds_index import Component, index_text, parse

PATHS = [Path("a.idx"), Path("b.idx")]


def test_the_text():
    first = [Component("jpg", 512, 1000, "a/0.jpg"), Component("cls", 2560, 1, "a/0.cls")]
    second = [Component("json", 3584, 2, "my photo%.json"), Component("", 4608, 3, "x.")]
    assert index_text([first, [*second, Component("png", 5632, 0, "x.png")]]) == (
        b"v1.2 2\njpg 512 1000 a/0.jpg cls 2560 1 a/0.cls\njson 3584 2 my%20photo%25.json png 5632 0 x.png\n"
    )


MEMBERS = [
    ("f.1/a.JPG", b"upper case, dot in the folder"),
    ("f.1/a.CLS", b"1"),
    ("b.cls", b"2"),
    ("b.png", b"png before jpg? no"),
    ("b.jpg", b"the image of b"),
    ("b.segmentation.png", b"a long extension"),
    ("b.segmentation_2.png", b"longer, and alike"),
    ("b.a_labels.json", b"of equal length"),
    ("b.b_labels.json", b"different in the first 8 bytes only"),
    ("e.jpg", b""),
    ("a b\u00e4%20.jpg", b"white space, percent"),
    ("a b\u00e4%20.my text", b"white space in the extension"),
    ("with\ttab\n.webp", b"x" * 70_000),
    ("sur\udcffrogate.jpg", b"not UTF-8"),
    ("a.jpg", b"11111111"),
    ("z" * 300 + ".jpg", b"long key"),
]


def assert_same(one: ShardIndex, other: ShardIndex) -> None:
    names = [[index.extensions[code] for code in index.extension] for index in (one, other)]
    assert names[0] == names[1]
    for name in ("shard", "keys", "key_ends", "member_ends", "image", "offset", "nbytes"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)


def test_indexes_have_the_samples_of_the_headers(tmp_path):
    tars = [write_tar(tmp_path / f"{n}.tar", MEMBERS[start:]) for n, start in enumerate((0, 9, 2))]
    texts, sizes = [add_index(tar).read_bytes() for tar in tars], [tar.stat().st_size for tar in tars]
    together = parse(texts, [PATHS[0]] * 3, sizes)
    alone = [parse([text], PATHS[:1], [size]) for text, size in zip(texts, sizes, strict=True)]
    for tar, parsed in zip(tars, alone, strict=True):
        assert_same(parsed, ShardIndex.of(index.build(tar)))
    assert alone[0].nbytes.dtype == np.uint32 and alone[0].image.dtype == np.uint8
    joined = ShardIndex.join(alone, 3)
    assert joined.extensions == together.extensions
    assert_same(together, joined)
    assert_same(together, ShardIndex.join([together], 3))
    assert np.bincount(joined.shard).tolist() == [len(index) for index in alone]


COMPONENTS = st.tuples(st.integers(0, 10**11), st.integers(0, 10**10), st.text("abc .%\t\u00e9", max_size=12))


@settings(deadline=None)
@given(st.lists(COMPONENTS, min_size=1, max_size=5))
def test_numbers_and_names_of_any_length(drawn):
    samples = [[Component("jpg", 512 * at, size, f"k{key.replace('.', '')}.jpg")] for at, size, key in drawn]
    parsed = parse([index_text(samples)], PATHS[:1], [10**16])
    keys = [sample[0].name.removesuffix(".jpg").encode() for sample in samples]
    assert parsed.offset.tolist() == [sample[0].offset for sample in samples]
    assert parsed.nbytes.tolist() == [sample[0].nbytes for sample in samples]
    assert parsed.keys.tobytes() == b"".join(keys)
    assert np.diff(parsed.key_ends).tolist() == [len(key) for key in keys]


GOOD = b"v1.2 2\njpg 512 9 a.jpg cls 1536 1 a.cls\npng 2560 9 b.png\n"
LONGER = GOOD + b"png 2560 9 b.png\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"v1.1 2\njpg 512 9\n", "v1.2 .*b'v1.1 2'"),
        *((text, "v1.2") for text in (b"", b"v1.2 0\n", b"v1.2 2 \n", b"v1.2 %d\n" % 10**50)),
        *((text, "2 complete lines") for text in (GOOD[:-1], GOOD[:-20], LONGER)),
        (b"v1.2 1\n\n", "line 2: .*fours"),
        (GOOD.replace(b"9 b.png", b"b.png"), "line 3: .*fours"),
        (GOOD.replace(b"a.jpg cls", b"a.jpg  cls"), "line 2: .*fours"),
        (GOOD.replace(b"png 2560 9 b", b"png  9 b"), "line 3: .*empty"),
        *(
            (GOOD.replace(b"2560", offset), "line 3: .*number")
            for offset in (b"+512", b"-512", b"12a4567890", b"\xb2\xb3")
        ),
        (GOOD.replace(b"2560", b"9" * 17), "line 3: .*number"),
        (GOOD.replace(b"2560", b"2561"), "line 3: .*outside"),
        (GOOD.replace(b"2560", b"1024000"), "line 3: .*outside"),
        (GOOD.replace(b"512 9", b"512 9999999999999999"), "line 2: .*outside"),
        (GOOD.replace(b"b.png", b".png"), "line 3: .*KEY.EXTENSION"),
        (GOOD.replace(b"b.png", b"p"), "line 3: .*KEY.EXTENSION"),
        (GOOD.replace(b"a.cls", b"aa.cls"), "line 2: .*KEY.EXTENSION"),
        (GOOD.replace(b"png", b"txt"), "line 3: .*image"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_other_texts_are_refused(text, message, place):
    texts = [text, GOOD] if place == 0 else [GOOD, text]
    with pytest.raises(tarpeg.CacheError, match=f"^{PATHS[place]}.*{message}"):
        parse(texts, PATHS, [10240, 10240])


def test_a_million_extensions_take_seconds_not_minutes():
    lines = [b"jpg 512 1 k%d.jpg %%58%d 512 1 k%d.%%58%d" % (n, n, n, n) for n in range(60_000)]
    lines[7] = lines[7].replace(b"%58", b"long" * 100)
    started = time.process_time()
    parsed = parse([b"\n".join([b"v1.2 60000", *lines, b""])], PATHS[:1], [10240])
    assert time.process_time() - started < 2, "8 s if quadratic"
    assert parsed.members(9) == [("jpg", 512, 1), ("x9", 512, 1)]
    assert parsed.members(7)[1][0] == "long" * 100 + "7" and len(parsed.extensions) == 60_001


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_random_text_raises_nothing_but_a_cache_error(noise):
    for text in (b"v1.2 1\n" + noise, b"v1.2 1\njpg 512 9 a.jpg " + noise + b"\n"):
        try:
            parsed = parse([text], PATHS[:1], [10240])
        except tarpeg.CacheError:
            continue
        assert (parsed.offset >= 0).all() and (parsed.offset + parsed.nbytes.astype(np.int64) <= 10240).all()
        assert (parsed.image < np.diff(parsed.member_ends)).all()


def read_by_dali(tars: list[Path], samples: int) -> list[tuple[bytes, bytes]]:
    """Read tars with their indexes by DALI: the bytes of .jpg and .cls of each sample."""
    pytest.importorskip("nvidia.dali")
    from nvidia.dali import fn, pipeline_def

    @pipeline_def(batch_size=samples, num_threads=1, device_id=None)
    def read():
        indexes = [str(tar.with_suffix(".idx")) for tar in tars]
        paths = {"paths": [str(tar) for tar in tars], "index_paths": indexes}
        return tuple(fn.readers.webdataset(ext=["jpg", "cls"], **paths))

    pipeline = read()
    pipeline.build()
    images, labels = pipeline.run()
    return [(bytes(images.at(row)), bytes(labels.at(row))) for row in range(samples)]


def test_dali_reads_a_cache(shard_of, tmp_path):
    for name, numbers in (("a", range(5)), ("b", range(2, 5))):
        shard_of(*([(f"{n} {key}", data) for key, data in sample(n)] for n in numbers), name=f"{name}.tar")
    tarpeg.build_cache(tmp_path, tmp_path / "cache", executor=0)
    tars = expand(tmp_path / "cache")
    shards = Shards(tars)
    labels = shards.members(range(8), "cls")
    assert read_by_dali(tars, 8) == list(zip(images(shards), labels, strict=True))

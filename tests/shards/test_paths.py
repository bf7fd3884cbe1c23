"""The shards of a source."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.small_tars import cache_home as cache_home, images, plain, write_tar
from PIL import Image
from tarpeg.cache.sources import list_source
from tarpeg.errors import ShardError
from tarpeg.shards.mapped import Shards
from tarpeg.shards.opening import classes_of, open_source, places_of
from tarpeg.shards.paths import expand
from tarpeg.shards.stream import expand_urls


def test_what_a_folder_of_shards_leaves_out_is_logged_once(tmp_path, caplog):
    for name in ("a.tar", "b.TAR", "c.tar.gz", "d.tgz", "more/e.tar", "logs/x.txt", "notes.txt", ".f.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_tar(tmp_path / name, [("k.jpg", b"J")])
    for source in (tmp_path, f"{tmp_path}/a.tar"):
        caplog.clear()
        assert len(open_source(source)) == 1
        line = "left out: 1 .TAR, 1 .gz, 1 .tgz, 1 folder beside the shards"
        assert caplog.messages == ([f"{tmp_path}: {line}"] if source == tmp_path else [])
        open_source(source, is_first=False)
        assert len(caplog.messages) == (source == tmp_path)


def test_expand_folder_glob_braces_path_and_list(tmp_path):
    paths = [plain(tmp_path / f"p-{i:03d}.tar") for i in (2, 0, 1)]
    (tmp_path / "notes.txt").write_text("no shard")
    (tmp_path / "._p-000.tar").write_text("left by macOS")
    (tmp_path / "below").mkdir()
    plain(tmp_path / "below" / "p-009.tar")
    in_order = sorted(paths)
    assert expand(tmp_path) == expand(str(tmp_path)) == expand(f"{tmp_path}/p-*.tar") == in_order
    assert expand(f"{tmp_path}/p-{{000..002}}.tar") == in_order
    assert expand(f"{tmp_path}/p-{{002..000}}.tar") == in_order[::-1]
    assert expand(f"{tmp_path}/{{p-00[01],b*/*}}.tar") == [*in_order[:2], tmp_path / "below" / "p-009.tar"]
    assert expand([paths[0], f"{tmp_path}/p-{{000..001}}.tar"]) == paths
    assert expand((tmp_path / "below", paths[0])) == [tmp_path / "below" / "p-009.tar", paths[0]]
    assert expand(f"{tmp_path}/**/p-009.tar") == [tmp_path / "below" / "p-009.tar"]
    Shards(paths)
    assert (tmp_path / "p-000.tarpeg.index").exists()
    assert expand(f"{tmp_path}/p-*") == in_order


def test_relative_paths_survive_a_change_of_folder_and_home_is_expanded(tmp_path, monkeypatch):
    plain(tmp_path / "a.tar")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand("a.tar") == [Path("a.tar")]
    shards = Shards(expand("a.tar"))
    monkeypatch.chdir("/")
    assert images(shards, [2]) == [b"J2"] and shards.shard(0) == tmp_path / "a.tar"
    assert expand("~/a.tar") == [tmp_path / "a.tar"]


def test_expand_takes_an_existing_name_literally(tmp_path):
    odd = tmp_path / "set{1..2}[x]"
    odd.mkdir()
    path = plain(odd / "a{0}.tar")
    assert expand(odd) == expand(path) == [path]


@pytest.mark.parametrize("name", ["cache [1]", "data {old}", "data {a,b}", "[1]{a}?*"])
def test_a_pattern_in_a_folder_whose_name_is_one_is_an_error_with_the_remedy(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    path = plain(folder / "train-000.tar")
    for pattern in ("train-*.tar", "train-{000..001}.tar", "absent.tar"):
        match = rf"shards .* has no match: .*the folder {re.escape(repr(str(folder)))}, which is there\. Give"
        for read in (expand, expand_urls, list_source, open_source):
            with pytest.raises(ShardError, match=match):
                read(f"{folder}/{pattern}")
    assert expand(folder) == expand([str(path)]) == [path]


CHAINS = ["zip://a-*.tar::{dir}/s.zip", "zip://::/s.zip", "simplecache::s3://u:secret@b/a.tar"]
NOT_LOCAL = ["s3://bucket/a-{{000..001}}.tar", ["{dir}/a-000.tar", "https://host/a.tar"], "pipe:cat a.tar"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "has no shards"),
        ("", "^''"),
        (["{dir}/a-000.tar", ""], "has no shards"),
        ("{dir}/absent.tar", "absent.tar.* a-000.tar, empty"),
        ("{dir}/nowhere/a.tar", "nowhere"),
        ("{dir}/q-*.tar", r"q-\*.tar.* a-000.tar, empty\. Give '.*/\*\.tar' for all"),
        ("{dir}/a-{{000..001}}.tar", "a-001.tar"),
        ("{dir}/a-{{000.tar", "braces"),
        ("{dir}/a-{{000}}.tar", r"a-\{000\}.tar"),
        ("{dir}/empty", "empty.*no .tar"),
        (["{dir}/a-000.tar", "{dir}/empty/../a-000.tar"], "is there twice"),
        (["{dir}", "{dir}/a-000.tar"], "is there twice"),
        *((source, "streaming=True") for source in NOT_LOCAL),
        *((source, "is a chain of URLs.*Give the URL of the shards") for source in CHAINS),
    ],
)
def test_expand_refuses(tmp_path, source, message):
    plain(tmp_path / "a-000.tar")
    (tmp_path / "empty").mkdir()
    fill = lambda text: text.format(dir=tmp_path)  # noqa: E731
    for read in (expand, expand_urls, list_source, open_source) if source in CHAINS else (expand,):
        with pytest.raises(ShardError, match=message) as caught:
            read(fill(source) if isinstance(source, str) else [fill(text) for text in source])
        assert "secret" not in str(caught.value)


def test_a_folder_of_images_that_are_not_read_names_one(tmp_path):
    (tmp_path / "IMG_1.HEIC").write_bytes(b"x")
    with pytest.raises(ShardError, match=r"no image but 'IMG_1\.HEIC', of a format that is not read"):
        expand(tmp_path)


@pytest.mark.parametrize("url", ["file://", "file://data/a.tar"])
def test_a_file_url_has_three_slashes(url):
    with pytest.raises(ShardError, match=r"must have three slashes, as file:///data/a\.tar"):
        expand_urls(url)


def test_a_file_url_is_its_path(tmp_path):
    (tmp_path / "a b::c").mkdir()
    path = plain(tmp_path / "a b::c" / "train-0.tar")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.jpg")
    for host in ("", "localhost"):
        for name in ("a%20b::c/train-*.tar", "a b::c/train-{0..0}.tar", "a%20b::c"):
            url = f"file://{host}{tmp_path}/{name}"
            assert expand(url) == [path] and expand_urls(url) == (str(path),)
            assert [one.location for one in list_source(url)] == [str(path)]
        assert open_source(f"file://{host}{tmp_path}/a.jpg").keys([0]) == ["a.jpg"]


@pytest.mark.parametrize("make_link", [Path.symlink_to, Path.hardlink_to])
def test_a_link_to_a_shard_of_the_source_is_that_shard_again(tmp_path, make_link):
    path, link = plain(tmp_path / "a.tar"), tmp_path / "link.tar"
    make_link(link, path)
    twice = rf"shard {re.escape(str(link))} \(.*a\.tar\) .*twice"
    for source in (tmp_path, [path, link], f"{tmp_path}/*.tar"):
        for read in (expand, expand_urls, list_source):
            with pytest.raises(ShardError, match=twice):
                read(source)
    assert expand(link) == [link]


def test_a_folder_with_shards_of_two_splits_is_an_error_that_has_both_patterns(tmp_path, monkeypatch):
    for name in ("train-000", "train-001", "val-000"):
        plain(tmp_path / f"{name}.tar")
    train, val = re.escape(f"'{tmp_path}/train-*.tar'"), re.escape(f"'{tmp_path}/val-*.tar'")
    monkeypatch.setenv("HOME", str(tmp_path.parent))
    for source in (tmp_path, [f"~/{tmp_path.name}"]):
        for find in (open_source, places_of, classes_of, expand_urls):
            with pytest.raises(ShardError, match=f"{train} or {val}"):
                find(source)
    assert len(open_source([f"{tmp_path}/train-*.tar", f"{tmp_path}/val-*.tar"])) == 9
    assert len(open_source(f"{tmp_path}/*.tar")) == 9 and len(expand_urls(f"{tmp_path}/*.tar")) == 3
    assert len(list_source(str(tmp_path))) == 3, "a cache of all of them can be built"


@pytest.mark.parametrize(
    ("names", "is_error"),
    [
        (("training.000", "valid.000"), True),
        (("Train_1", "test_1"), True),
        (("val0", "test0"), True),
        (("imagenet1k-train-0000", "imagenet1k-validation-00"), True),
        (("photos_train_00", "photos_val_00"), True),
        (("photos.train-00", "photos.retrain-00", "contest-00"), False),
        (("val-0", "validation-0", "dev-0"), False),
        (("train-0", "trainees-0", "valley-0", "extra-0"), False),
    ],
    ids=str,
)
def test_names_that_are_those_of_splits(tmp_path, names, is_error):
    for name in names:
        plain(tmp_path / f"{name}.tar")
    if is_error:
        with pytest.raises(ShardError, match=" or "):
            open_source(tmp_path)
    else:
        open_source(tmp_path)


def test_opening_a_folder_lists_it_once_for_its_kind_and_once_for_its_shards(tmp_path, monkeypatch):
    plain(tmp_path / "train-0.tar")
    listed, iterdir = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: listed.append(path) or iterdir(path))
    open_source(tmp_path)
    assert listed == [tmp_path] * 2

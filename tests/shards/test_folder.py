"""Folders of images: splits and classes, and files, keys, formats and errors of unlabelled ones."""

from __future__ import annotations

import contextlib
import glob
import os
import pickle
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import tarpeg
import torch
import webdataset
from helpers import reference
from helpers.loaders import load
from helpers.odd_files import kernel_log, odd_files
from helpers.pictures import jpeg, picture, tensor
from helpers.small_tars import plain, sample, write_tar
from tarpeg import (
    CenterCrop,
    DecodeError,
    Folder,
    KeyedBatch,
    Loader,
    ShardDataModule,
    ShardError,
    Split,
    build_cache,
)
from tarpeg.shards.folder import ImageFile
from tarpeg.shards.labels import read_labels
from tarpeg.shards.opening import open_source, places_of
from tarpeg.shards.paths import expand
from tarpeg.shards.unlabelled import UnlabelledImages, find_images
from tarpeg.shards.walk import left_out_line, matches
from torchvision.transforms.v2.functional import center_crop, resize

FORMATS = {
    "a.jpg": ("JPEG", "RGB"),
    "b.JPEG": ("JPEG", "L"),
    "c.png": ("PNG", "RGBA"),
    "d/e.bmp": ("BMP", "RGB"),
    "d/f.tiff": ("TIFF", "CMYK"),
    "d/g/h.webp": ("WEBP", "RGB"),
    "d/g/i.ppm": ("PPM", "RGB"),
    "d/g/j.pgm": ("PPM", "L"),
    "d/g/k.pbm": ("PPM", "1"),
    "l.m.gif": ("GIF", "P"),
}


@pytest.fixture
def album(tmp_path):
    """A folder with an image of each format, and other files."""
    for number, (name, (kind, mode)) in enumerate(FORMATS.items()):
        path = tmp_path / "album" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(kind, number, mode))
    for name in ("notes.txt", ".hidden.png", "._a.jpg", "noext"):
        (tmp_path / "album" / name).write_bytes(b"x")
    (tmp_path / "album" / ".cache").mkdir()
    (tmp_path / "album" / ".cache" / "x.png").write_bytes(b"x")
    return tmp_path / "album"


def predicted(source, **options):
    options = {"shuffle": False, "flip": 0, "target": None, "workers": 0, "fidelity": "exact"} | options
    loader = load(source, CenterCrop(48, shorter=56), **options)
    with pytest.warns(UserWarning, match=r"shard .*album, key '.*' is not a JPEG"):
        batches = list(loader)
    loader.close()
    return batches


def test_all_formats_in_order_with_their_paths_as_keys(album):
    batches = predicted(album)
    assert [key for batch in batches for key in batch.key] == sorted(FORMATS)
    for batch in batches:
        assert type(batch) is KeyedBatch and set(batch.label.tolist()) == {-1}
        for key, image in zip(batch.key, batch.image, strict=True):
            whole = reference.decode_crop(tensor((album / key).read_bytes()), 0, 0, 64, 80)
            expected = center_crop(resize(whole, 56), [48, 48])
            assert torch.equal(image, expected), key
    for one, two in zip(batches, predicted(album, workers=2), strict=True):
        assert torch.equal(one.image, two.image) and one.key == two.key


def test_globs_paths_and_lists(album, monkeypatch):
    keys = lambda source: find_images(source).keys(range(len(find_images(source))))  # noqa: E731
    assert keys(f"{album}/**/*.p?m") == ["d/g/i.ppm", "d/g/j.pgm", "d/g/k.pbm"]
    assert keys(f"{album}/d/*") == ["e.bmp", "f.tiff"]
    assert keys(str(album / "a.jpg")) == ["a.jpg"]
    below = ["d/g/h.webp", "d/g/i.ppm", "d/g/j.pgm", "d/g/k.pbm"]
    assert keys([album / "d" / "g", album / "c.png"]) == [*below, "c.png"]
    monkeypatch.chdir(album)
    assert keys("d") == ["e.bmp", "f.tiff", "g/h.webp", "g/i.ppm", "g/j.pgm", "g/k.pbm"]
    assert keys("*.gif") == ["l.m.gif"]
    assert keys("{a.jp,l.m.gi}*") == ["a.jpg", "l.m.gif"]
    assert keys(f"{album}/{{d,d/g}}/[ei].*") == ["e.bmp", "g/i.ppm"]
    Path("{b}.jpg").write_bytes(Path("a.jpg").read_bytes())
    assert keys("{b}.jpg") == ["{b}.jpg"], "an existing path is taken literally"
    with pytest.raises(ShardError, match=r"'a\.jpg' has images and 'x\.jpg' has shards, or does not exist"):
        find_images("{a,x}.jpg")
    (album / "d" / "notes.txt").write_text("x")
    what = r"matches images such as .*\.\w+ and other files such as .*/d/notes\.txt\. Give a folder"
    for pattern in (f"{album}/**", f"{album}/d/*"):
        with pytest.raises(ShardError, match=what):
            find_images(pattern)


def test_a_folder_by_a_path_with_two_dots_has_all_its_images(album):
    expected = find_images(album)
    found = find_images(f"{album}/d/g/../..")
    assert found.keys(range(len(found))) == expected.keys(range(len(expected)))
    assert found.left_out == expected.left_out


def test_a_pattern_does_not_follow_links_to_a_folder_above(album):
    plain(album / "d" / "g" / "x.tar")
    for place in ("up", "d/up", "d/g/up"):
        (album / place).symlink_to(album)  # three of them: glob.glob would not end
    found = find_images(f"{album}/**/*.p?m")
    assert found.keys(range(len(found))) == ["d/g/i.ppm", "d/g/j.pgm", "d/g/k.pbm"]
    assert expand(f"{album}/**/*.tar") == [album / "d" / "g" / "x.tar"]


@pytest.mark.parametrize(
    "pattern",
    ["**/*.jpg", "**", "*/**/*.jpg", "a/**/*.jpg", "**/**/*.jpg", "a/**", "**/a/*", "[ab]/**/?.*", "a**/*"],
)
def test_patterns_match_as_those_of_glob(tmp_path, monkeypatch, pattern):
    for place in ("a/b/c", "a/.hidden", "b/c[1]/a", "a/x y", "aa"):
        folder = tmp_path / place
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("1.jpg", ".2.jpg", "3.png"):
            (folder / name).touch()
    (tmp_path / "b" / "link").symlink_to(tmp_path / "a" / "x y")  # followed, as by glob
    monkeypatch.chdir(tmp_path)
    for before in ("", "./", f"{tmp_path}/", f"{tmp_path}//b/../"):
        expected = {name for name in glob.glob(before + pattern, recursive=True) if not Path(name).is_dir()}  # noqa: PTH207
        found = [name for name in matches(before + pattern) if not Path(name).is_dir()]
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize(
    ("parts", "image"),
    [
        ([".", "a.jpg"], "a.jpg"),
        (["d", "."], "d/e.bmp"),
        (["d/../a.jpg", "a.jpg"], "a.jpg"),
        (["*.gif", "*.[gp]*"], "l.m.gif"),
        (["a.jpg", "a.jpg"], "a.jpg"),
        (["d/g", "folder-link"], "folder-link/h.webp"),
        (["a.jpg", "soft.jpg"], "soft.jpg"),
        (["a.jpg", "hard.jpg"], "hard.jpg"),
    ],
    ids=str,
)
def test_an_image_of_two_parts_is_refused(album, parts, image):
    for link, target in (("soft.jpg", "a.jpg"), ("folder-link", "d/g"), ("hard.jpg", "a.jpg")):
        if link in parts:
            make_link = Path.hardlink_to if link == "hard.jpg" else Path.symlink_to
            make_link(album / link, album / target)
    source = [f"{album}/{part}" for part in parts]
    for find in (find_images, open_source, places_of, lambda given: predicted(given)):
        with pytest.raises(
            ShardError, match=rf"image .*/{image} .*twice, by '.*/{re.escape(parts[0])}' and "
        ):
            find(source)


def test_a_class_with_underscores_around_its_name_is_read_by_all_readers(tmp_path):
    names = ["__background__", "_background__", "cat"]
    for name in names:
        for number in range(2):
            (tmp_path / "src" / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / "src" / name / f"{number}.jpg").write_bytes(jpeg("420", 24, 32, seed=number))
    build_cache(tmp_path / "src", tmp_path / "cache", executor=0)
    (tmp_path / "shards").mkdir()
    tarpeg.make_shards(tmp_path / "shards", Folder(str(tmp_path / "src")))
    for folder in (tmp_path / "cache", tmp_path / "shards"):
        tars = [str(path) for path in sorted(folder.glob("*.tar"))]
        for streaming in (False, True):
            labels = [y for batch in load(tars, streaming=streaming, workers=0) for y in batch.label.tolist()]
            assert sorted(labels) == [0, 0, 1, 1, 2, 2]
        theirs = [sample["__key__"] for sample in webdataset.WebDataset(tars, shardshuffle=False)]
        assert len({*theirs}) == len(theirs) == 6
    path = write_tar(tmp_path / "a.tar", [("__x__/0.jpg", b"J"), ("__x__/1.jpg", b"J"), ("y.jpg", b"J")])
    what = (
        r"'__x__/0\.jpg', and whatever else is in a folder of the form __NAME__, is ignored, as by webdataset"
    )
    for read in (open_source, lambda path: list(load(path, streaming=True, max_bad=1.0, workers=0))):
        with pytest.warns(UserWarning, match=what) as caught, contextlib.suppress(DecodeError):
            read(str(path))
        assert sum("__NAME__" in str(each.message) for each in caught) == 1


def test_links_in_one_folder_are_images_of_their_own(album):
    (album / "z.jpg").symlink_to(album / "a.jpg")
    assert len(find_images(album)) == len(FORMATS) + 1
    assert find_images([f"{album}/?.jpg", album / "d" / "g"]).keys(np.arange(2)) == ["a.jpg", "z.jpg"]
    assert len(find_images(f"{album}/**/**/*.p?m")) == 3, "a file that a pattern matches several times"


def test_a_hidden_image_is_one_if_its_name_is_given(album):
    (album / "a.jpg").rename(album / ".a.jpg")
    for source in (album / ".a.jpg", f"{album}/.[a]*.jpg", f"{album}/.{{a..a}}.jpg"):
        assert find_images(source).keys([0]) == [".a.jpg"]
    assert len(find_images(album)) == len(FORMATS) - 1


def test_sources_that_mean_shards(tmp_path, album):
    plain(tmp_path / "x.tar")
    patterns = (f"{tmp_path}/*", f"{tmp_path}/x*.tar", "nowhere", "x-{0..3}.tar")
    for source in (tmp_path, tmp_path / "x.tar", *patterns):
        assert find_images(source) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(ShardError, match=r"has no \.tar file"):
        Split(tmp_path / "empty", CenterCrop(8)).open()
    with pytest.raises(ShardError, match=r"no \.tar file and no sub-directory per class, but images such as"):
        build_cache(album / "d" / "g", tmp_path / "cache")
    with pytest.raises(ShardError, match=r"has images .* shards"):
        Split([album, tmp_path / "x.tar"], CenterCrop(8)).open()


def test_a_folder_has_no_labels(album):
    with pytest.warns(UserWarning, match="no labels"):
        pictures = Split(album, CenterCrop(8)).open()
    assert pictures.labels([0, 1]).tolist() == [-1, -1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Split(album, CenterCrop(8), target=None).open()
    for target, message in (("fine", "target='fine'"), ("json:label", "no member 'json'")):
        with pytest.raises(ShardError, match=message):
            read_labels(pictures, np.arange(2), target)
        with pytest.raises(ShardError, match="no labels"):
            load(album, CenterCrop(8), target=target, workers=0, threads=0)


def test_a_broken_image_and_a_removed_one(album):
    (album / "c.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")
    with pytest.warns(UserWarning, match=r"key 'c\.png': image is CORRUPT .*PNG header"):
        batches = predicted(album)
    assert sum(len(batch.key) for batch in batches) == len(FORMATS)
    pictures = Split(album, CenterCrop(8), target=None).open()
    (album / "a.jpg").unlink()
    with pytest.raises(ShardError, match=r"a\.jpg of .*album .*No such file"):
        pictures.images([0])


def test_no_file_is_kept_open(tmp_path):
    for number in range(300):
        (tmp_path / f"{number:03d}.jpg").write_bytes(jpeg("420", 24, 24, number))
    before = len(list(Path("/proc/self/fd").iterdir()))
    pictures = pickle.loads(pickle.dumps(find_images(tmp_path)))
    assert isinstance(pictures, UnlabelledImages) and len(pictures.images(np.arange(300))) == 300
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert (pictures.keys([7]), pictures.extensions(7), pictures.shard(7)) == (["007.jpg"], ["jpg"], tmp_path)


# --- classes and splits


def filled(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")
    return Folder(root)


@pytest.mark.parametrize(
    "name", ["val", "valid", "validation", "dev", "test", "Dev", "Testing", "eval", "Evaluation"]
)
def test_names_of_splits(tmp_path, name):
    train = "train" if name.islower() else "Training"
    folder = filled(tmp_path, f"{train}/cat/a.jpg", f"{train}/dog/b.jpg", f"{name}/dog/c.jpg")
    split = "test" if name in ("test", "Testing") else "val"
    found = {part: [file[1:] for file in own.files()] for part, own in folder.parts().items()}
    assert list(found) == ["train", split] and found[split] == [("dog/c", 1)]
    assert sorted(found["train"]) == [("cat/a", 0), ("dog/b", 1)]
    alone = filled(tmp_path / "alone", f"{name}/a.jpg", "zoo/b.jpg")
    assert alone.classes() == {name: 0, "zoo": 1}, "a single one may be a class"
    with pytest.raises(ShardError, match="no train"):
        filled(tmp_path / "two", f"{name}/x/a.jpg", f"{'val' if split == 'test' else 'test'}/x/b.jpg").files()


def test_splits_that_cannot_be_told_apart(tmp_path):
    folder = filled(tmp_path / "a", "train/cat/a.jpg", "val/cat/a.jpg", "dev/cat/a.jpg")
    with pytest.raises(ShardError, match="dev and val"):
        folder.parts()
    with pytest.raises(ShardError, match=r"train.* has no sub-directory"):
        filled(tmp_path / "b", "train/a.jpg", "test/b.jpg").files()
    with pytest.raises(ShardError, match="has no directory test"):
        Folder(filled(tmp_path / "c", "cat/a.jpg").root, split="test").files()
    (part,) = filled(tmp_path / "d", "train/cat/a.jpg", "train/dog/a.jpg").parts().items()
    assert part[0] == "train" and part[1].classes() == {"cat": 0, "dog": 1}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("images/a.jpg annotations/a.xml", r"'annotations' of root="),
        ("train/cat/a.jpg info/a.xml z/a.xml", r"'info' .*nor have 'z'.*root=.*train'"),
        ("train/cat/a.jpg test_images/b.jpg", "train and test_images"),
        ("train/cat/a.jpg holdout/cat/b.jpg", "train and holdout.* root=.*/train'"),
        ("training_set/cat/a.jpg test_set/cat/b.jpg", "training_set and test_set"),
        ("train2017/a.jpg val2017/b.jpg", "train2017 and val2017"),
        ("seg_train/seg_train/x/a.jpg seg_test/seg_test/x/b.jpg", "seg_train and seg_test"),
        ("images/train/x/a.jpg images/val/x/b.jpg", "has images.* root=.*images'"),
        ("val/cat/a.jpg val/dog/b.jpg", "has val.* root=.*val'"),
        ("train/cat/a.jpg eval/b.jpg", "val.* has no sub-directory"),
        ("Training/a.jpg Testing/b.jpg", "Training' has no sub-directory"),
    ],
)
def test_splits_and_annotations_do_not_become_classes(tmp_path, names, message):
    with pytest.raises(ShardError, match=message):
        filled(tmp_path, *names.split()).contents()


def test_classes_with_names_of_splits_stay_classes(tmp_path):
    flat = filled(tmp_path / "a", "test/a.jpg", "training/a.jpg", "meeting/a.jpg", "eval/x.jpg")
    assert list(flat.classes()) == ["eval", "meeting", "test", "training"] and len(flat.files()) == 4
    deep = [
        f"{name}/{time}/a.jpg" for name in ("bus", "car", "train", "tram", "taxi") for time in ("am", "pm")
    ]
    assert list(filled(tmp_path / "b", *deep).classes()) == ["bus", "car", "taxi", "train", "tram"]
    places = filled(tmp_path / "c", *deep, "test_tube/a.jpg", "train_station/platform/a.jpg")
    assert len(places.files()) == 12 and list(places.parts()) == [""]
    three = filled(tmp_path / "d", "train/x/a.jpg", "val/x/b.jpg", "eval/x/c.jpg", "val/empty/.x")
    assert list(three.parts()) == ["train", "val"]
    assert three.left_out() == {".x": 1, "folder eval, which is not a split": 1}
    with pytest.raises(ShardError, match=r"empty .* 1 classes of train"):
        three.contents()
    (tmp_path / "d" / "train" / "empty").mkdir()
    with pytest.raises(ShardError, match=r"'empty' of root=.*train'"):
        three.contents()
    filled(tmp_path / "d", "train/empty/a.jpg")
    assert three.contents()["classes"] == {"train/empty": 1, "train/x": 1, "val/x": 1}


def test_classes_have_the_files_of_a_folder_without_labels(tmp_path):
    folder = filled(tmp_path, "x/a.JFIF", "x/b.jpe", "x/c.pgm", "x/d.dib", "x/e.webp", "x/f.txt")
    members = {file.key: file.extension for file in folder.files()}
    assert members == {"x/a": "jpg", "x/b": "jpg", "x/c": "ppm", "x/d": "bmp", "x/e": "webp"}
    assert folder.left_out() == {".txt": 1}
    for name in "zyw":
        (tmp_path / name).mkdir()
    with pytest.raises(ShardError, match=r"class 'w' .* has no image \(nor have 'y', 'z'\)"):
        folder.files()


def test_a_folder_of_splits_with_shards_is_not_called_one_of_images(tmp_path):
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "a-000.tar", sample(0))
    with pytest.raises(
        ShardError, match=r"train' has shards, such as a-000\.tar, and no images.*train/\*\.tar'"
    ):
        build_cache(tmp_path, tmp_path.parent / "cache", executor=0)


def test_splits_that_are_one_directory(tmp_path):
    folder = filled(tmp_path, "train/cat/a.jpg", "train/dog/a.jpg")
    (tmp_path / "val").symlink_to("train")
    with pytest.raises(ShardError, match=r"train and val.* link"):
        folder.contents()


def test_links_to_folders_above_are_left_out(tmp_path):
    """They would repeat images, under other keys: in both splits of a val_share."""
    root = tmp_path / "root"
    folder = filled(root, *(f"{name}/{n}.jpg" for name in ("cat", "dog") for n in range(5)))
    (tmp_path / "linked").symlink_to("root")
    (tmp_path / "other").mkdir()
    (root / "cat" / "l").symlink_to(".")
    (root / "dog" / "up").symlink_to("..")
    (root / "all").symlink_to(".")
    (root / "dog" / "far").symlink_to(tmp_path / "other")
    (tmp_path / "other" / "back").symlink_to(root)
    (tmp_path / "other" / "a.jpg").touch()
    for found in (folder, Folder(tmp_path / "linked")):
        assert list(found.classes()) == ["cat", "dog"]
        keys = sorted(file.key for file in found.files())
        assert keys == sorted([f"{name}/{n}" for name in ("cat", "dog") for n in range(5)] + ["dog/far/a"])
        assert left_out_line(found.left_out()) == "left out: 4 links to folders above"


def test_files_that_are_left_out_are_counted(tmp_path):
    folder = filled(tmp_path, "1.jpg", "2.JPG", "cat/a.jpg", "cat/b.jxl", "cat/deep/c.jxl", "cat/README")
    filled(tmp_path, ".DS_Store", "cat/.DS_Store", "dog/._a.jpg", "dog/d.jpg", ".git/a", ".git/b")
    (tmp_path / "cow").symlink_to("nowhere")
    counts = {"images without a class folder": 2, ".DS_Store": 2, ".jxl": 2, "hidden .jpg": 1, ".git/": 1}
    assert folder.left_out() == counts | {"files without an extension": 1, "links to missing files": 1}
    assert left_out_line(folder.left_out()) == (
        "left out: 2 images without a class folder, 2 .DS_Store, 2 .jxl, 1 .git/, "
        "1 file without an extension, 1 hidden .jpg, 1 link to missing files"
    )
    parted = filled(
        tmp_path / "p", "train/x/a.jpg", "val/x/b.jpg", "val/c.jpg", "test/d.jpg", "extra/x/e.jpg"
    )
    loose = "images without a class folder in"
    assert parted.left_out() == {
        f"{loose} test": 1,
        f"{loose} val": 1,
        "folder extra, which is not a split": 1,
    }
    both = ("cat", "dog")
    many = filled(
        tmp_path / "m", "loose.jpg", *(f"{name}/{kind}.{kind}" for name in both for kind in "abcdefgh")
    )
    filled(tmp_path / "m", "cat/a.jpg", "dog/a.jpg")
    assert left_out_line(many.left_out()).startswith("left out: 1 image without a class folder, 2 .a, 2 .b")
    many = {f".{number}": 2 for number in range(10)}
    assert left_out_line(many).endswith("2 .7, and 4 other files") and left_out_line({}) == ""


def test_a_link_in_a_circle_is_as_one_to_a_missing_file(tmp_path):
    folder = filled(tmp_path, *(f"cat/{number}.jpg" for number in range(3)), "dog/a.jpg")
    (tmp_path / "cat" / "x.jpg").symlink_to("x.jpg")
    (tmp_path / "bird").symlink_to("bird")
    assert list(folder.classes()) == ["cat", "dog"] and len(folder.files()) == 5
    with pytest.raises(ShardError, match=r"^1 of 5 images cannot be read: .*cat/x\.jpg: Too many levels"):
        folder.contents()


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    folder, scandir = filled(tmp_path, "cat/a.jpg", "cat/closed/b.jpg"), os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(ShardError, match=r"cat/closed .*Permission denied"):
        folder.files()
    linked = filled(tmp_path / "linked", "cat/a.jpg")
    (tmp_path / "linked" / "cat" / "b.jpg").symlink_to("nowhere")
    with pytest.raises(ShardError, match=r"b\.jpg.*No such .*tarpeg\.build_cache"):
        linked.contents()
    disk = filled(tmp_path / "disk", "train/x/a.jpg", "val/x/b.jpg", "closed/c.jpg")
    assert list(disk.contents()["classes"]) == ["train/x", "val/x"]
    assert disk.left_out() == {"folder closed, which is not a split": 1}
    training = Folder(filled(tmp_path / "disk", "val/closed/d.jpg").root, split="train", val_share=0.1)
    assert [file.key for file in training.files()] == ["x/a"]
    assert training.left_out()["folders that cannot be read"] == 1


# --- what is no file


def test_other_files_are_left_out_of_predictions_and_counted_once(tmp_path, caplog):
    filled(tmp_path, "a.jpg", "b.jpg", "b.jp2", "c/d.HEIC", "c/noext", "._a.jpg", ".git/e.jpg")
    (tmp_path / "f.jpg").symlink_to("nowhere")
    split = Split(tmp_path, CenterCrop(8), target=None)
    data = ShardDataModule(predict=split, workers=0)
    with pytest.warns(UserWarning, match="1 images are no regular files") as caught:
        data.setup()
        assert data.predict_dataloader().fetcher.shards.keys([0]) == ["a.jpg"]
    kinds = "1 .git/, 1 .heic, 1 .jp2, 1 file without an extension, 1 hidden .jpg"
    assert caplog.messages == [f"{tmp_path}: left out: {kinds}"] and len(caught) == 1
    caplog.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Loader(split, batch_size=2, workers=0, rank=1, world=2)
    assert not caplog.messages, "of another rank"


@pytest.mark.parametrize("pattern", ["", "/*.png"])
def test_links_to_missing_files_are_left_out_of_predictions(tmp_path, pattern):
    filled(tmp_path, "a.png")
    (tmp_path / "b.png").symlink_to("nowhere")
    with pytest.warns(UserWarning, match=r"\b1 images .*regular files .*b\.png"):
        images = open_source(f"{tmp_path}{pattern}")
    assert images.keys(range(len(images))) == ["a.png"]


@pytest.mark.parametrize("pattern", ["", "/*.png"])
def test_odd_files_are_left_out_of_predictions_and_listed(tmp_path, pattern):
    folder = tmp_path / "album"
    folder.mkdir()
    (folder / "a.png").write_bytes(picture("PNG"))
    odd = odd_files(folder, "png")
    kernel_log(folder, "png")
    with pytest.warns(UserWarning, match=rf"album.*: 3 images .*regular files .* {odd[0]}"):
        loader = load(f"{folder}{pattern}", CenterCrop(8), shuffle=False, target=None, workers=0)
    with pytest.warns(UserWarning, match=r"kernel\.png': image is EMPTY"):
        assert [key for batch in loader for key in batch.key] == ["a.png", "a.png"]


def test_an_image_that_became_odd_or_has_no_end_is_an_error(tmp_path):
    for name in ("a.jpg", "b.jpg", "c.jpg"):
        (tmp_path / name).write_bytes(b"x")
    pictures = find_images(tmp_path)
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).unlink()
    os.mkfifo(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").symlink_to("/dev/zero")
    os.truncate(tmp_path / "c.jpg", 1 << 42)
    for id, reason in enumerate(("not a regular file", "not a regular file", "bytes, more than")):
        with pytest.raises(ShardError, match=rf"[abc]\.jpg of .*: .*{reason}"):
            pictures.images([id])
        with pytest.raises(ShardError, match=rf"[abc]\.jpg: .*{reason}"):
            ImageFile(str(tmp_path / f"{'abc'[id]}.jpg"), "k", 0).read()

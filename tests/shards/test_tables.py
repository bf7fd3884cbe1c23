"""Labels in a table beside the images: CSV, Parquet, a DataFrame."""

from __future__ import annotations

import importlib
import logging
import math
import re
import unicodedata
import warnings
from datetime import date
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.loaders import ALL
from helpers.pictures import jpeg, saved
from helpers.small_tars import sample, write_tar
from PIL import Image
from tarpeg import Label, Loader, ShardDataModule, ShardError, Split, Whole, build_cache
from tarpeg.errors import ResumeError

NAMES = ["a.jpg", "b.png", "sub/c.d.jpg"]


@pytest.fixture
def folder(tmp_path):
    """A folder of images a.jpg, b.png and sub/c.d.jpg."""
    root = tmp_path / "images"
    (root / "sub").mkdir(parents=True)
    for name in NAMES:
        (root / name).write_bytes(jpeg("420", 16, 16))
    return root


def loader(shards, table, target="y", key="file", **options):
    return Loader(
        Split(shards, Whole(16), labels=table, key=key, target=target, **options),
        64,
        training=False,
        workers=0,
    )


def labels(*arguments, **options):
    made = loader(*arguments, **options)
    try:
        return next(iter(made)).label
    finally:
        made.close()


def csv(tmp_path, text, name="labels.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "target", "dtype", "expected"),
    [
        ("file,y\na.jpg,1\nb.png,2\nsub/c.d.jpg,3\n", "y", torch.int64, [1, 2, 3]),
        ("y,file\n1.5,a.jpg\n2,b.png\n3,sub/c.d.jpg", "y", torch.float32, [1.5, 2, 3]),
        ("file;y\r\na;1\r\nb;2\r\nsub/c.d;3\r\n", "y", torch.int64, [1, 2, 3]),
        ("file\ty\tx, y\na\t1\t\nsub/c.d\t3\t\nb\t2\t\n", "y", torch.int64, [1, 2, 3]),
        (
            b'\xef\xbb\xbf"file",y\n"a.jpg","1"\n./b.png,2\n/data/images/sub/c.d.jpg,3\n',
            "y",
            torch.int64,
            None,
        ),
        (b"\xef\xbb\xbffile,y\n./a.jpg,1\n./b.png,2\n./sub\\c.d.jpg,3\n\n", "y", torch.int64, [1, 2, 3]),
        ("file,y\n/x/a.jpg,1\n/x/b.png,2\n/x/c.d.jpg,3\n/x/else.jpg,4\n", "y", torch.int64, [1, 2, 3]),
        ("file,y,z\na,1,2\nb,3,4.5\nsub/c.d,5,6\n", ["y", "z"], torch.float32, [[1, 2], [3, 4.5], [5, 6]]),
        ('file,y\na,cat\nb,"a dog, black"\nsub/c.d,cat\n', "y", torch.int64, [1, 0, 1]),
        ("file,y\na,cat\nb,dog\nsub/c.d,cat\n", Label("y", classes=["dog", "cat"]), torch.int64, [1, 0, 1]),
        (
            "file,y\na,cat dog\nb,\nsub/c.d,cow\n",
            Label("y", separator=" "),
            torch.float32,
            [[1, 0, 1], [0] * 3, [0, 1, 0]],
        ),
        (
            "file,y,z\na,0,1\nb,1,1\nsub/c.d,0,0\n",
            Label(["y", "z"], kind="classes"),
            torch.float32,
            [[0, 1], [1, 1], [0, 0]],
        ),
        ("file,y\na,1\nb,\nsub/c.d,3\n", Label("y", optional=True), torch.int64, [1, -1, 3]),
        ("file,y\na,1\nsub/c.d,3\n", Label("y", "number", optional=True), torch.float32, [1, math.nan, 3]),
    ],
)
def test_tables(tmp_path, folder, text, target, dtype, expected):
    table = csv(tmp_path, text)
    if expected is None:
        with pytest.raises(ShardError, match=r"\b1 of 3 samples.*'sub/c\.d\.jpg'"):
            labels(folder, table, target)
        return
    found = labels(folder, table, target)
    assert found.dtype == dtype
    assert found.nan_to_num(-9).tolist() == torch.tensor(expected, dtype=dtype).nan_to_num(-9).tolist()


@pytest.mark.parametrize("cells", [["0.5 1.5", "3 4", "5 6"], ["0 1", "1 0", "1 1"], ["cat", "cat dog", "7"]])
@pytest.mark.parametrize("kind", [None, "number", "classes"])
def test_texts_with_separators_are_the_same_in_a_csv_and_in_a_frame(tmp_path, folder, cells, kind):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"file": ["a", "b", "sub/c.d"], "y": cells})
    table, label = tmp_path / "labels.csv", Label("y", kind, separator=" ")
    frame.to_csv(table, index=False)
    found = []
    for given in (table, frame):
        try:
            found.append(labels(folder, given, label).tolist())
        except ShardError as error:
            found.append(str(error).partition("'y' is ")[2])
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "Float64", "float64"])
def test_several_classes_of_nullable_columns(folder, dtype):
    pandas = pytest.importorskip("pandas")
    columns = {"ant": pandas.array([1, None, 0], dtype=dtype), "bee": pandas.array([0, 1, None], dtype=dtype)}
    frame = pandas.DataFrame({"file": ["a", "b", "sub/c.d"], **columns})
    found = labels(folder, frame, Label(["ant", "bee"], "classes", optional=True))
    assert found.nan_to_num(-9).tolist() == [[1, 0], [-9, 1], [0, -9]]


def test_tags_with_a_hole_in_a_column_of_texts(folder):
    pandas = pytest.importorskip("pandas")
    tags = pandas.array(["ant;bee", None, "bee"], dtype="string")
    frame = pandas.DataFrame({"file": ["a", "b", "sub/c.d"], "y": tags})
    found = labels(folder, frame, Label("y", "classes", separator=";", optional=True))
    assert found.nan_to_num(-9).tolist() == [[1, 1], [-9, -9], [0, 1]]
    with pytest.raises(ShardError, match=r"is missing: give tarpeg\.Label\(optional=True\)"):
        labels(folder, frame, Label("y", "classes", separator=";"))


def test_a_table_of_shards_with_workers_a_subset_and_a_stream(tmp_path, photos):
    rows = [f"photos/{key}.jpg,{number / 2}" for number, key in reversed([*enumerate(ALL)])]
    table = csv(tmp_path, "\n".join(["file,y", *rows]))
    expected = [number / 2 for number in range(23)]
    for workers in (0, 1):
        split = Split(photos, Whole(16), labels=table, key="file", target="y")
        made = Loader(split, 8, training=False, workers=workers)
        assert torch.cat([batch.label for batch in made]).tolist() == expected
        made.close()
    few = csv(tmp_path, "\n".join(["file,y", *(f"{key},1.5" for key in ALL[3:5])]), "few.csv")
    assert labels(photos, few, subset=[3, 4]).tolist() == [1.5, 1.5]
    whole = csv(
        tmp_path,
        "\n".join(["file,y", *(f"{key}.jpg,{number / 2}" for number, key in enumerate(ALL))]),
        "w.csv",
    )
    made = loader(photos, whole, streaming=True)
    assert torch.cat([batch.label for batch in made]).tolist() == expected
    with pytest.raises(ShardError, match=r"'k0000'.* no row"):
        labels(photos, few, streaming=True)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("optional", [False, True])
def test_one_row_for_samples_of_two_shards_is_an_error(tmp_path, streaming, optional):
    for name in "ab":
        write_tar(tmp_path / f"{name}.tar", [member for number in range(2) for member in sample(number)])
    table = csv(tmp_path, "file,y\nk0000,1.5\nk0001,2.5\n")
    given = Label("y", "number", optional=optional), {"streaming": True} if streaming else {}
    what = (
        r"/[ab]\.tar, key 'k000.': (shard .*/[ab]\.tar|another sample) has this key too, .* one row for both"
    )
    with pytest.raises(ShardError, match=what):
        list(loader(tmp_path / "[ab].tar", table, given[0], **given[1]))
    assert labels(tmp_path / "a.tar", table, given[0], **given[1]).sort().values.tolist() == [1.5, 2.5]
    write_tar(tmp_path / "c.tar", [*sample(0), *sample(1), *sample(0)])
    with pytest.raises(ShardError, match=r"/c\.tar, key 'k0000': (shard|another) .* has this key too"):
        labels(tmp_path / "c.tar", table, given[0], **given[1])


def test_a_stream_finds_keys_with_accents_however_they_are_written(tmp_path):
    names = [unicodedata.normalize(form, f"é{number}") for number, form in enumerate(("NFC", "NFD"))]
    write_tar(tmp_path / "a.tar", [(f"{name}.jpg", jpeg("420", 16, 16)) for name in names])
    table = csv(tmp_path, f"file,y\n{names[0]},0\n{unicodedata.normalize('NFC', names[1])},1\n")
    assert labels(tmp_path / "a.tar", table, streaming=True).sort().values.tolist() == [0, 1]


@pytest.mark.parametrize("kind", ["paths", "absolute", "composed", "stream"])
def test_rows_by_paths_that_have_other_keys_in_a_cache(tmp_path, kind):
    root = tmp_path / ("d" * 100) / ("e" * 100)
    names = [f"cat/{'w' * 120}.jpg", "__x__/b.c.jpg", "cat/1.jpg", "dog/1.jpg"]
    names += [f"{'f' * 100}/{'g' * 60}/1.jpg", f"dog/{unicodedata.normalize('NFD', 'é' * 60)}.jpg"]
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(saved(Image.new("L", (16, 16), 40 * number), "JPEG"))
    build_cache(root, tmp_path / "cache", executor=0)
    rows = [f"{root}/{name}" if kind == "absolute" else name for name in names]
    if kind == "composed":
        rows = [unicodedata.normalize("NFC", name) for name in names]
        rows[-1] = names[-1]  # its key is a hash of the bytes
    table = csv(tmp_path, "file,y\n" + "".join(f"{name},{row}\n" for row, name in enumerate(rows)))
    split = Split(
        tmp_path / "cache", Whole(16), labels=table, key="file", target="y", streaming=kind == "stream"
    )
    (batch,) = Loader(split, 8, training=False, workers=0)
    assert (batch.image[:, 0, 8, 8] // 10).div(4).round().tolist() == batch.label.tolist()
    assert len(batch.label) == 6


def test_an_optional_row_that_a_stream_does_not_find_is_a_warning(tmp_path):
    samples = [(f"cat/{key}", content) for number in range(4) for key, content in sample(number)]
    shard, label = write_tar(tmp_path / "a.tar", samples), Label("y", "number", optional=True)
    table = csv(tmp_path, "file,y\nk0000,0\nk0001,1\nk0002,2\nk0003,3\n")
    assert labels(shard, table, label).tolist() == [0, 1, 2, 3], "an index finds names alone"
    what = r"key 'cat/k000.', and the next 1: .*whole keys.* first .* is 'k0000'"
    with pytest.warns(UserWarning, match=what) as caught:
        split = Split(shard, Whole(16), labels=table, key="file", target=label, streaming=True)
        made = Loader(split, 2, training=False, workers=0)
        assert torch.cat([batch.label for batch in made]).isnan().all()
    assert sum("whole keys" in str(each.message) for each in caught) == 1


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("file,y\na,1\nb,2\n", {}, r"\b1 of 3 samples.*'sub/c\.d\.jpg'"),
        ("file,y\nx,1\nz,2\n", {}, r"keys are 'x', 'z', .*'a\.jpg', 'b\.png'"),
        ("file,y\na,1\nb,2\nsub/c.d,3\na.jpg,4\nb,5", {}, r"key 'a.jpg'.* rows 1 and 4 of"),
        (
            "file,y\na,1\nb,2\nsub/c.d,x\n",
            {"target": Label("y", kind="number")},
            "row 3 .*'sub/c.d'.*'y' is \"x\"",
        ),
        ("file,y\na,1\nb,\nsub/c.d,3\n", {}, "row 2 .*key 'b'.*missing.*optional"),
        ("file,y\na,1\nb,2,3\nsub/c.d,3\n", {}, "line 3 has 3 cells"),
        ("file,y\na,1\nb,2\nsub/c.d,3\n", {"key": "fil"}, "no column 'fil'; did you mean 'file'"),
        ("file,y\na,1\nb,2\nsub/c.d,3\n", {"key": None}, r"needs key=.*\['file', 'y'\]"),
        ("file,y\na,1\nb,2\nsub/c.d,3\n", {"target": "cls"}, "no column 'cls'"),
        ("file,y,y\na,1,1\nb,2,2\nsub/c.d,3,3\n", {}, "two columns 'y'"),
        ("file,y\n", {}, "no rows"),
        ("", {}, "no column"),
        (b"file,y\na\xff,1\n", {}, "UTF-8"),
        ('file,y\n"a,1\n', {}, "CSV"),
        (
            "file,y\na,dog\nb,cat\nsub/c.d,cow\n",
            {"target": Label("y", classes=["cat", "dog"])},
            'row 3.*"cow"',
        ),
    ],
)
def test_wrong_tables(tmp_path, folder, text, options, match):
    with pytest.raises(ShardError, match=match) as error:
        labels(folder, csv(tmp_path, text), **options)
    assert "labels.csv" in str(error.value) or "key 'a.jpg'" in str(error.value)


def test_a_table_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "labels.csv").write_text("".join(["key,label\n", *(f"{n},{n}\n" for n in range(99))]))
    from tarpeg.shards.tables import read_table

    assert read_table("~/labels.csv", "key", ["label"]).columns[0][:2] == ["0", "1"]
    for name in ("~nobody-has-this/labels.csv", "~$labels.csv", "x" * 300, ""):
        with pytest.raises(ShardError, match=rf"labels='{re.escape(name)}' "):
            read_table(name, "key", ["label"])


def test_a_missing_file_and_arguments(tmp_path, folder):
    with pytest.raises(ShardError, match=r"none\.csv.*No such file"):
        labels(folder, tmp_path / "none.csv")
    for options, text in (
        ({"key": "file"}, "key="),
        ({"labels": 7, "key": "file"}, "labels=7"),
        ({"labels": "x.csv", "key": "file", "target": []}, "place="),
    ):
        with pytest.raises(ValueError, match=text):
            Split(folder, Whole(16), **options)


def test_images_of_one_name_in_two_folders_need_their_folders(tmp_path):
    members = [(f"{part}/x.jpg", jpeg("420", 16, 16)) for part in "ab"]
    shards = write_tar(tmp_path / "x.tar", members)
    with pytest.raises(ShardError, match=r"'x.jpg'.*'a/x' and 'b/x'"):
        labels(shards, csv(tmp_path, "file,y\nx.jpg,1\n"))
    assert labels(shards, csv(tmp_path, "file,y\nb/x.jpg,1\na/x.jpg,2\n")).tolist() == [2, 1]
    # b/x is not mistaken for a/x, whose row is that of another image.
    with pytest.raises(ShardError, match=r"\b1 of 2 samples.*'b/x'"):
        labels(shards, csv(tmp_path, "file,y\na/x.jpg,2\nc/x.jpg,1\n"))


def test_rows_of_other_folders_are_taken_with_a_warning_and_never_for_one_of_two_images(tmp_path, folder):
    table = csv(tmp_path, "file,y\ntrain/a.jpg,1\ntrain/b.png,2\ntrain/c.d.jpg,3\n")
    with pytest.warns(UserWarning, match=r"key 'train/a\.jpg' .*'a\.jpg'"):
        assert labels(folder, table).tolist() == [1, 2, 3]
    plain = csv(tmp_path, "file,y\na.jpg,1\nb.png,2\nc.d.jpg,3\n", "plain.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels(folder.parent, plain).tolist() == [1, 2, 3], "keys without folders"
    (folder / "other").mkdir()
    (folder / "other" / "a.jpg").write_bytes(jpeg("420", 16, 16))
    with pytest.raises(ShardError, match=r"key 'train/a\.jpg' .* samples 'a\.jpg' and 'other/a\.jpg': "):
        labels(folder, table, subset=[0, 1, 3])


def test_what_python_alone_reads_as_a_number_is_a_name(tmp_path, folder):
    for cells in (("0_2", "15_20", "4_6"), ("1_000", "x", "2_0")):
        table = csv(
            tmp_path,
            "file,y\n"
            + "".join(f"{name},{cell}\n" for name, cell in zip(("a", "b", "sub/c.d"), cells, strict=True)),
        )
        places = [sorted(cells).index(cell) for cell in cells]
        found = labels(folder, table)
        assert found.tolist() == places and found.dtype == torch.int64
    with pytest.raises(ShardError, match=r'is "1_2", and others are numbers'):
        labels(folder, csv(tmp_path, "file,y\na,1_2\nb,12\nsub/c.d,3\n"))
    with pytest.raises(ShardError, match=r'"1_2", not a finite number'):
        labels(folder, csv(tmp_path, "file,y\na,1_2\nb,12\nsub/c.d,3\n"), target=Label("y", kind="number"))


@pytest.mark.parametrize("cell", ["nan", "NA", "inf", '"1,5"', "2024-01-01", "?"])
def test_a_text_among_numbers_is_no_class_unless_it_is_asked_for(tmp_path, folder, cell):
    table = csv(tmp_path, f"file,y\na,1\nb,{cell}\nsub/c.d,2\n")
    with pytest.raises(ShardError, match=r"labels\.csv.*'y'.*numbers.*kind='class'"):
        labels(folder, table)
    assert labels(folder, table, target=Label("y", kind="class")).dtype == torch.int64


def test_rows_of_other_images_are_counted_in_the_log(tmp_path, folder, caplog):
    with caplog.at_level(logging.INFO, "tarpeg"):
        labels(folder, csv(tmp_path, "file,y\na,1\nb,2\nsub/c.d,3\ne,4\n"))
    assert "1 of 4 rows are of other images" in caplog.text


class Frame:
    """What tarpeg uses of a DataFrame."""

    def __init__(self, **columns):
        self.columns, self._columns = list(columns), columns

    def __getitem__(self, name):
        return self._columns[name]


@pytest.mark.parametrize("kind", [dict, Frame])
def test_frames(folder, kind):
    keys = ["a", "b", "sub/c.d"]
    assert labels(folder, kind(file=keys, y=[1, 2, 3])).tolist() == [1, 2, 3]
    assert labels(folder, kind(file=keys, y=[[1.0, 2.0], [3, 4], (5, 6)])).tolist() == [
        [1, 2],
        [3, 4],
        [5, 6],
    ]
    tags = labels(folder, kind(file=keys, y=[["x"], [], ["y", "x"]]))
    assert tags.tolist() == [[1, 0], [0, 0], [1, 1]]
    with pytest.raises(ShardError, match="is missing"):
        labels(folder, kind(file=keys, y=[1.5, math.nan, 3]))
    with pytest.raises(ShardError, match="'z'"):
        labels(folder, kind(file=keys, y=[1, 2, 3]), "z")


class Series:
    """What tarpeg uses of a column of polars: iterated over, a cell with a list is a column itself."""

    def __init__(self, cells):
        self.cells = cells

    def to_list(self):
        return self.cells

    def __iter__(self):
        return (Series(cell) if isinstance(cell, list) else cell for cell in self.cells)


def test_columns_of_lists_as_of_polars(folder):
    frame = Frame(file=Series(["a", "b", "sub/c.d"]), y=Series([["x"], [], ["y", "x"]]))
    assert labels(folder, frame).tolist() == [[1, 0], [0, 0], [1, 1]]


def test_integers_of_which_some_are_missing_are_floats_in_pandas(folder):
    frame = {"file": ["a", "b", "sub/c.d"], "y": [4.0, math.nan, 6.0]}
    found = [labels(folder, frame, Label("y", kind, optional=True)) for kind in (None, "integer", "class")]
    assert [each.tolist()[::2] for each in found] == [[4, 6], [4, 6], [0, 1]]
    assert [each.dtype for each in found] == [torch.float32, torch.int64, torch.int64]
    with pytest.raises(ShardError, match=r"is 4\.5, not a 64-bit integer"):
        labels(folder, frame | {"y": [4.5, 1, 2]}, Label("y", "integer"))


def test_a_column_of_integers_has_one_part_with_separators(tmp_path, folder):
    frame, table = (
        {"file": ["a", "b", "sub/c.d"], "y": [2, 1, 2]},
        csv(tmp_path, "file,y\na,2\nb,1\nsub/c.d,2\n"),
    )
    for label in (Label("y", separator=";"), Label("y", "classes", ["1", "2"], separator=";")):
        assert torch.equal(labels(folder, frame, label), labels(folder, table, label))


@pytest.mark.parametrize("head", ["file,y,note (a|b|c|d)", 'file,y,"x;z;w;q"'])
def test_the_delimiter_is_that_of_cells_not_of_names(tmp_path, folder, head):
    table = csv(tmp_path, f"{head}\na,2,\nb,1,\nsub/c.d,3,\n")
    assert labels(folder, table).tolist() == [2, 1, 3]


def test_a_first_row_of_two_lines_and_one_with_a_comma_too_many(tmp_path, folder):
    table = csv(tmp_path, 'file,note,y\na,"two\nlines",2\nb,x,1\nsub/c.d,"x;y",3\n')
    assert labels(folder, table).tolist() == [2, 1, 3]
    for text, line in (("file,y\na,1,5\nb,2\n", 2), ("sep=,\nfile,y\na,1\nb,2,3\n", 4)):
        with pytest.raises(
            ShardError, match=rf"line {line} has 3 cells, and the first line has 2: .*quotes around"
        ):
            labels(folder, csv(tmp_path, text))
    names = ",".join(f"c{number}" for number in range(30_000))
    table = csv(tmp_path, f"file,y,{names}\n" + "".join(f"{k},4,{names}\n" for k in ("a", "b", "sub/c.d")))
    assert labels(folder, table).tolist() == [4, 4, 4]


def test_lists_of_numbers_of_another_form_are_no_names(tmp_path, folder):
    table = csv(tmp_path, 'file,y\na,"1,5;2,5"\nb,"3,5"\nsub/c.d,"4,5"\n')
    with pytest.raises(ShardError, match=r"write numbers with a point.*kind='classes'"):
        labels(folder, table, Label("y", separator=";"))
    assert labels(folder, table, Label("y", "classes", separator=";")).shape == (3, 4)


def test_white_space_makes_no_class_in_a_frame(folder):
    assert labels(folder, {"file": ["a", "b", "sub/c.d"], "y": [" cat", "cat", "dog "]}).tolist() == [0, 0, 1]


def test_letters_with_accents_are_one_class_however_they_are_written(tmp_path, folder):
    cells = [unicodedata.normalize(form, "Bär") for form in ("NFC", "NFD")]
    table = csv(tmp_path, f"sep=|\r\nfile|y\r\na|{cells[0]}\r\nb|{cells[1]}\r\nsub/c.d|Ara\r\n")
    assert labels(folder, table).tolist() == [1, 1, 0]
    for name in cells:
        assert labels(folder, table, Label("y", classes=[name, "Ara"])).tolist() == [0, 0, 1]


@pytest.fixture
def frame():
    """Columns of all kinds in a DataFrame of pandas."""
    pandas = pytest.importorskip("pandas", reason="pandas is in the dev extra")
    columns = {
        "file": ["a", "b", "sub/c.d"],
        "number": [1.5, None, 3],
        "integer": pandas.array([4, None, 6], dtype="Int64"),
        "name": ["x", "y", "x"],
        "category": pandas.Categorical(["x", "y", "x"], categories=["y", "x"]),
        "flag": [True, False, True],
        "pair": [[1, 2], [3, 4], [5, 6]],
        "tags": [["x"], [], ["y", "x"]],
        "date": pandas.to_datetime(["2024-01-01"] * 3),
    }
    return pandas.DataFrame(columns, index=[7, 8, 9])


@pytest.fixture(params=["DataFrame", "Parquet"])
def table(request, frame, tmp_path):
    if request.param == "DataFrame":
        return frame
    pytest.importorskip("pyarrow", reason="pyarrow is in the dev extra")
    frame.to_parquet(tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


@pytest.mark.parametrize(
    ("target", "dtype", "expected"),
    [
        (Label("number", optional=True), torch.float32, [1.5, -9, 3]),
        (Label("integer", optional=True), torch.int64, [4, -1, 6]),
        ("name", torch.int64, [0, 1, 0]),
        ("category", torch.int64, [0, 1, 0]),
        ("flag", torch.int64, [1, 0, 1]),
        ("pair", torch.float32, [[1, 2], [3, 4], [5, 6]]),
        ("tags", torch.float32, [[1, 0], [0, 0], [1, 1]]),
        (["flag", "pair"], None, r"key 'a': 'flag' is true"),
        ("integer", None, r"key 'b': 'integer' is missing"),
        ("date", None, r"'date'.*2024-01-01"),
        ("nam", None, r"no column 'nam'; did you mean 'name'"),
    ],
)
def test_frames_of_pandas_and_parquet(folder, table, target, dtype, expected):
    if dtype is None:
        with pytest.raises(ShardError, match=expected) as error:
            labels(folder, table, target)
        assert "t.parquet" in str(error.value) or "labels= (a DataFrame)" in str(error.value)
        return
    found = labels(folder, table, target)
    assert found.dtype == dtype and found.nan_to_num(-9).tolist() == expected


def test_two_columns_of_a_name_are_one_error(tmp_path, folder, frame):
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is in the dev extra")
    parquet = importlib.import_module("pyarrow.parquet")
    twice = pyarrow.Table.from_arrays([frame["file"], [1, 2, 3], [1, 2, 3], [4, 5, 6]], [*"fyyz"])
    parquet.write_table(twice, tmp_path / "t.parquet")
    for table in (tmp_path / "t.parquet", frame.set_axis([*"fyyzwuvts"], axis=1)):
        with pytest.raises(ShardError, match=r"two columns 'y'"):
            labels(folder, table, "y", key="f")
    assert labels(folder, tmp_path / "t.parquet", "z", key="f").tolist() == [4, 5, 6]


@pytest.mark.parametrize("damage", ["no Parquet", "cut", "flipped"])
def test_a_damaged_parquet_file_is_an_error_with_its_name(tmp_path, folder, frame, damage):
    pytest.importorskip("pyarrow", reason="pyarrow is in the dev extra")
    path = tmp_path / "bad.parquet"
    frame.to_parquet(path)
    whole = path.read_bytes()
    pages = b"\xff" * 200  # the columns are known, their cells cannot be read
    path.write_bytes(
        {"no Parquet": b"x" * 50, "cut": whole[:-9], "flipped": whole[:4] + pages + whole[204:]}[damage]
    )
    with pytest.raises(ShardError, match=r"bad\.parquet.*Parquet"):
        labels(folder, path, "name")


def test_parquet_without_pyarrow(tmp_path, folder, monkeypatch):
    def missing(name, *_):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ShardError, match="pip install pyarrow"):
        labels(folder, tmp_path / "t.parquet")


def test_resuming_compares_the_labels(tmp_path, folder):
    table = csv(tmp_path, "file,y\na,1\nb,2\nsub/c.d,3\n")
    first = loader(folder, table)
    state = first.state_dict()
    table.write_text("file,other,y\nb,9,2\nsub/c.d,9,3\na,9,1\nz,9,9\n")  # the same labels
    loader(folder, table).load_state_dict(state)
    table.write_text("file,y\na,1\nb,2\nsub/c.d,4\n")
    with pytest.raises(
        ResumeError, match=r"data: labels \(3 .* then, labels \(3 .* now, .* Restore the labels; or"
    ):
        loader(folder, table).load_state_dict(state)


def test_names_of_the_classes_of_a_table(tmp_path, folder):
    table = csv(tmp_path, "file,y,z\na,dog,1.5\nb,cat,2\nsub/c.d,dog,3\n")
    assert Split(folder, Whole(16), labels=table, key="file", target="y").classes() == ["cat", "dog"]
    assert Split(folder, Whole(16), labels=table, key="file", target="z").classes() is None


def test_tables_with_other_classes_have_a_remedy_of_tables(tmp_path, folder):
    val = tmp_path / "val"
    val.mkdir()
    (val / "a.jpg").write_bytes(jpeg("420", 16, 16))
    tables = csv(tmp_path, "file,y\na,x\nb,y\nsub/c.d,z\n"), csv(tmp_path, "file,y\na,y\n", "val.csv")
    train, other = (
        Split(images, Whole(16), labels=table, key="file", target=Label("y"))
        for images, table in zip((folder, val), tables, strict=True)
    )
    with pytest.raises(ShardError, match=r"label 0 is 'x' in train and 'y' in val.*Label .*classes="):
        ShardDataModule(train=train, val=other, workers=0).setup()


def test_absolute_paths_are_compared_below_the_folder_of_the_samples(tmp_path):
    for name in ("a/x", "b/x", "b/y"):
        path = tmp_path / "root" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 24, 24))
    table = tmp_path / "labels.csv"
    rows = [f"{tmp_path}/root/{name}.jpg,{label}" for name, label in (("b/x", 2), ("a/x", 1), ("b/y", 3))]
    table.write_text("\n".join(["file,y", *rows]))
    split = Split(tmp_path / "root", Whole(16), labels=table, key="file", target="y")
    (batch,) = Loader(split, 64, training=False, workers=0)
    assert batch.label.tolist() == [1, 2, 3]


def test_absolute_paths_are_compared_below_the_folder_that_shards_were_made_of(tmp_path):
    """In each class the images have the same names; the folder is known by the rows alone."""
    names = [f"{part}/{number:03d}" for part in ("cat", "dog") for number in (1, 2)]
    shards = write_tar(tmp_path / "x.tar", [(f"{name}.jpg", jpeg("420", 16, 16)) for name in names])
    rows = [f"/data/pets/{name}.jpg,{number}" for number, name in enumerate(names)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = csv(tmp_path, "\n".join(["file,y", "/data/pets/cow/001.jpg,9", *reversed(rows)]))
        assert labels(shards, table).tolist() == [0, 1, 2, 3]
    few = [f"/data/{part}/{name}.jpg,1" for part, name in (("pets", "a/1"), ("others", "b/2"))]
    pair = write_tar(tmp_path / "pair.tar", [(f"{name}.jpg", jpeg("420", 16, 16)) for name in ("a/1", "b/2")])
    with pytest.warns(
        UserWarning, match="'/data/pets/a/1.jpg' and '/data/others/b/2.jpg' are of two folders"
    ):
        assert labels(pair, csv(tmp_path, "\n".join(["file,y", *few]))).tolist() == [1, 1]
    other = [f"/data/val/{name}.jpg,7" for name in names]  # as many rows are those of another folder
    with pytest.raises(ShardError, match=r"as '/data/pets/cat/001\.jpg' and '/data/val/dog/001\.jpg'"):
        labels(shards, csv(tmp_path, "\n".join(["file,y", *rows, *other])))


def test_images_that_differ_in_their_extensions_alone_have_rows_of_their_own(tmp_path):
    """Images of a folder keep their names, those of shards have keys without dots."""
    root = tmp_path / "root" / "c"
    root.mkdir(parents=True)
    content = jpeg("420", 24, 24)
    for name in ("same.jpg", "same.jpeg", "img.1.jpg"):
        (root / name).write_bytes(content)
    rows = "same.jpg,1\nsame.jpeg,2\nimg.1.jpg,3\nimg_1.jpg,4\n"  # the last one of another split
    for begin in ("", "c/", "root/c/", f"{root}/"):
        table = csv(tmp_path, "file,y\n" + "".join(f"{begin}{row}\n" for row in rows.split()))
        for shards in (root, root.parent):
            assert labels(shards, table).tolist() == [3, 2, 1], (begin, shards)
    # The row of an image is not that of another one, which has none, also if a subset leaves the first out.
    table = csv(tmp_path, "file,y\nsame.jpg,1\nimg.1,3\n")
    for options in ({}, {"subset": [0, 1]}):
        with pytest.raises(ShardError, match=r"no row for 1 of . samples, such as '.*same\.jpeg'"):
            labels(root, table, **options)
    with pytest.warns(
        UserWarning, match=r"key '.*/same\.png' is taken for the image 'same\.jpg'.* extension"
    ):
        table = csv(tmp_path, f"file,y\n{root}/same.png,1\n{root}/img.1.JPEG,3\n")
        assert labels(f"{root}/*.jpg", table).tolist() == [3, 1]
    table = csv(tmp_path, "file,y\nsame.jpg,1\nimg.1,3\n")
    optional = Label("y", optional=True)
    assert labels(root, table, target=optional).tolist() == [3, -1, 1]
    assert labels(root, table, target=optional, subset=[0, 1]).tolist() == [3, -1]
    table = csv(tmp_path, "file,y\nsame,1\nimg.1,3\n")
    for options in ({}, {"subset": [0, 1]}):
        with pytest.raises(
            ShardError, match=r"'same\.jpe?g' and '.*same\.jpe?g': write keys with .* extensions"
        ):
            labels(root, table, **options)
    for name in ("a.b.jpg", "a_b.jpg"):
        (tmp_path / "dots").mkdir(exist_ok=True)
        (tmp_path / "dots" / name).write_bytes(content)
    for rows in ("a.b,1\na_b,2\n", "a.b,1\na_b.jpg,2\n", "a.b.jpg,1\na_b.jpeg,2\n"):
        assert labels(tmp_path / "dots", csv(tmp_path, f"file,y\n{rows}")).tolist() == [1, 2], rows
    with pytest.raises(ShardError, match=r"rows 1 and 2 of .* as 'same' and 'same': leave one row per image"):
        labels(root, csv(tmp_path, "file,y\nsame,1\nsame,2\nimg.1,3\n"))
    for split in ("train", "val"):
        write_tar(tmp_path / f"{split}.tar", [("c/1.jpg", content)])
    table = csv(tmp_path, "file,y\ntrain/c/1.jpg,1\nval/c/1.jpg,2\n")
    with pytest.raises(
        ShardError, match=r"as 'train/c/1\.jpg' and 'val/c/1\.jpg': .* give each split its own table"
    ):
        labels(tmp_path / "val.tar", table)


def test_a_row_of_an_image_in_another_folder_is_not_taken_in_silence(tmp_path):
    for name in ("train/a/x", "train/a/y", "val/a/x", "val/a/y", "val/b/x"):
        path = tmp_path / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 24, 24))
    table = tmp_path / "labels.csv"

    def labels(*rows, begin=f"{tmp_path}/", folder="val"):
        table.write_text("\n".join(["file,y", *(f"{begin}{name}.jpg,{label}" for name, label in rows)]))
        split = Split(tmp_path / folder, Whole(16), labels=table, key="file", target="y")
        return next(iter(Loader(split, 64, training=False, workers=0))).label.tolist()

    both = [("train/a/x", 7), ("val/a/x", 1), ("train/a/y", 8), ("val/b/x", 3), ("val/a/y", 2)]
    for begin in (f"{tmp_path}/", "", f"{tmp_path.name}/"):
        assert labels(*both, begin=begin) == [1, 2, 3]
        assert labels(*both, begin=begin, folder="train") == [7, 8]
    (tmp_path / "val" / "b" / "x.jpg").unlink()
    for begin in (f"{tmp_path}/", ""):
        with pytest.warns(UserWarning, match="train/a/x.jpg' is taken for the sample 'a/x.jpg', by the name"):
            labels(("train/a/x", 7), ("train/a/y", 8), begin=begin)


@pytest.mark.parametrize(
    "cells", ["0;5", "1,5", "-inf", "1 000", "12 %", "1.000,5", "1'000", "\u22121", "0x1F", "\u0661\u0662"]
)
def test_white_space_makes_no_class_and_numbers_of_another_form_are_no_names(tmp_path, folder, cells):
    if cells == "0;5":
        table = csv(tmp_path, "file;y\na;cat\nb; cat \nsub/c.d;dog\n")
        assert labels(folder, table).tolist() == [0, 0, 1]
        return
    table = csv(tmp_path, f"file;y\na;{cells}\nb;{cells}\nsub/c.d;{cells}\n")
    with pytest.raises(ShardError, match=r"write numbers with a point.*kind='class'"):
        labels(folder, table)
    assert labels(folder, table, Label("y", kind="class")).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "form",
    [
        *("'{}'", "tensor({})", "tensor({}, dtype=torch.int32)", "np.int64({})", "({})", "[{}]", "[{}. 0.5]"),
        *("({}, 1)", "[[{}, 2], [3, 4]]", "array([{}, nan])", "{},5e-1", "={}", "'\"{}\"'", "\ufeff{}"),
    ],
)
def test_what_programs_put_around_numbers_makes_no_names_of_them(tmp_path, folder, form):
    rows = (f"{name}\t{form.format(k)}\n" for name, k in zip(NAMES, (10, 9, 8), strict=True))
    given = csv(tmp_path, "file\ty\n" + "".join(rows))
    with pytest.raises(
        ShardError, match=r"columns \['y'\]: a cell is .*, as are all others: write numbers with"
    ):
        labels(folder, given)
    assert labels(folder, given, Label("y", kind="class")).tolist() == [0, 2, 1], "names, as asked for"


def test_intervals_and_ranges_are_names(tmp_path, folder):
    for cells in (("(0, 18]", "(18, 60]", "(60, 99]"), ("0-18", "18-60", "60-99"), ("0 cm", "1 cm", "2 cm")):
        text = "file;y\n" + "".join(f"{name};{cell}\n" for name, cell in zip(NAMES, cells, strict=True))
        assert labels(folder, csv(tmp_path, text)).tolist() == [0, 1, 2]


def test_a_blank_before_a_quote_is_no_part_of_a_cell(tmp_path, folder):
    text = '"file", "y"\n"a.jpg", "10"\n"b.png", "9"\n"sub/c.d.jpg", "8"\n'
    assert labels(folder, csv(tmp_path, text)).tolist() == [10, 9, 8]


def test_a_blank_before_a_quote_of_a_later_row(tmp_path, folder):
    text = 'file, y\na.jpg, cat\nb.png, dog\nsub/c.d.jpg, "dog"\nother, "big, dog"\n'
    assert labels(folder, csv(tmp_path, text)).tolist()[1:] == [2, 2]


def test_tables_that_were_joined_with_their_heads(tmp_path, folder):
    with pytest.raises(ShardError, match="line 3 has the names of the columns again: remove it"):
        labels(folder, csv(tmp_path, "file,y\na,cat\nfile,y\nb,dog\n"))


@pytest.mark.parametrize("name", ["dir.parquet", "dir"])
def test_a_table_that_is_a_folder_has_a_remedy(tmp_path, folder, name):
    (tmp_path / name).mkdir()
    with pytest.raises(ShardError, match=r"is a folder: give a file, or labels=pandas\.read_parquet"):
        labels(folder, tmp_path / name)


@pytest.mark.parametrize("true", ["True", "TRUE", "true"])
def test_true_and_false_of_a_csv_file_are_those_of_a_frame(tmp_path, folder, true):
    false = {"True": "False", "TRUE": "FALSE", "true": "false"}[true]
    text = f"file,x,y\na,{true},{false}\nb,{true},{true}\nsub/c.d,{true},{false}\n"
    given = csv(tmp_path, text)
    assert labels(folder, given, "x").tolist() == [1, 1, 1], "with one value alone, too"
    assert labels(folder, given, "y").tolist() == [0, 1, 0]
    assert Split(folder, Whole(16), labels=given, key="file", target="y").classes() == ["False", "True"]
    named = Split(folder, Whole(16), labels=given, key="file", target=Label("y", classes=[true, false]))
    bare = Split(folder, Whole(16), labels=given, key="file", target="y")
    if true == "True":
        with pytest.raises(ShardError, match="label 0 is 'True' in train and 'False' in val"):
            ShardDataModule(named, bare, workers=0, allow_overlap=True).setup()
    for kind in ("classes", "number"):
        found = labels(folder, given, Label(["x", "y"], kind=kind))
        assert found.dtype == torch.float32 and found.tolist() == [[1, 0], [1, 1], [1, 0]]
    named = Split(folder, Whole(16), labels=given, key="file", target=Label("y", kind="class"))
    assert named.classes() == sorted([true, false])
    assert labels(folder, given, Label("y", classes=[true, false])).tolist() == [1, 0, 1]


def test_a_text_among_truths_is_no_class(tmp_path, folder):
    for optional in (False, True):
        with pytest.raises(ShardError, match=r'a cell is "NA", and others are numbers: .*optional=True'):
            labels(
                folder, csv(tmp_path, "file,y\na,TRUE\nb,FALSE\nsub/c.d,NA\n"), Label("y", optional=optional)
            )


def test_truths_of_a_frame_are_names_if_these_are_asked_for(folder):
    frame = {"file": NAMES, "y": [True, False, np.True_]}
    assert labels(folder, frame).tolist() == [1, 0, 1]
    named = Split(folder, Whole(16), labels=frame, key="file", target=Label("y", kind="class"))
    assert named.classes() == ["False", "True"]
    for classes, expected in ((["True", "False"], [0, 1, 0]), ([0, 1], [1, 0, 1])):
        assert labels(folder, frame, Label("y", classes=classes)).tolist() == expected


def test_whole_numbers_with_a_point_are_integers_if_these_are_asked_for(tmp_path, folder):
    given = csv(tmp_path, "file,y\na,3.0\nb,\nsub/c.d,1.0\n")
    assert labels(folder, given, Label("y", kind="integer", optional=True)).tolist() == [3, -1, 1]
    assert labels(folder, given, Label("y", classes=[1, 2, 3], optional=True)).tolist() == [2, -1, 0]


def test_names_of_any_type(folder):
    days = [date(2020, 1, day) for day in (2, 1, 3)]
    assert labels(folder, {"file": NAMES, "y": days}, Label("y", kind="class")).tolist() == [1, 0, 2]


@pytest.mark.parametrize("form", ["['{}', 'dog']", '["{}", "dog"]', " ['{}'] "])
def test_lists_that_were_written_as_texts_are_an_error(tmp_path, folder, form):
    given = csv(tmp_path, "file;y\n" + "".join(f"{name};{form.format('cat')}\n" for name in NAMES))
    for target in ("y", Label("y", kind="classes"), Label("y", separator=",")):
        with pytest.raises(ShardError, match=r"a list that was written as a text, .*separator='\|'"):
            labels(folder, given, target)
    assert labels(folder, given, Label("y", kind="class")).tolist() == [0, 0, 0]


def test_names_in_several_columns_of_classes_are_an_error(tmp_path, folder):
    text = "file,x,y\na,cat,1\nb,dog,0\nsub/c.d,cat,0\n"
    with pytest.raises(
        ShardError, match=r'is "cat", not a number in 0\.\.1: of several places each is one class'
    ):
        labels(folder, csv(tmp_path, text), Label(["x", "y"], kind="classes"))


def test_numbers_as_names_and_decimal_numbers_and_lists_of_a_frame(folder):
    frame = {"file": NAMES, "stars": [1.5, 2.0, 1.0], "price": [Decimal("1.50"), Decimal(2), Decimal(3)]}
    assert labels(folder, frame, Label("stars", kind="class")).tolist() == [1, 2, 0]
    assert labels(folder, frame, "price").tolist() == [1.5, 2, 3]
    big = (1 << 53) + 1
    frame["id"] = [Decimal(big), Decimal(f"{big + 2}.00"), Decimal(5)]
    assert labels(folder, frame, "id").tolist() == [big, big + 2, 5]
    rows = np.array([[0.5, 1], [2, 3], [4, 5]], np.float32)
    frame["v"] = [list(row) for row in rows]
    assert labels(folder, frame, "v").tolist() == rows.tolist()
    frame["hot"] = [[True, False], (False, True), np.array([True, True])]
    assert labels(folder, frame, Label("hot", kind="classes")).tolist() == [[1, 0], [0, 1], [1, 1]]
    frame["v"] = [[1.0, None], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ShardError, match="a cell is null, neither a number nor a name"):
        labels(folder, frame, "v")
    frame["v"] = [[], [2.0, 3.0], [4.0, 5.0]]
    with pytest.raises(ShardError, match=r"key 'a.jpg': 'v' is \[\], not a list of 2 numbers"):
        labels(folder, frame, "v")
    frame["v"] = [1.5, "cat", 2]
    with pytest.raises(ShardError, match=r"a cell is 1\.5, neither a number nor a name"):
        labels(folder, frame, "v")


def test_a_wrong_row_of_another_image_does_not_matter_to_a_stream(tmp_path):
    tar = write_tar(tmp_path / "a.tar", [(f"{key}.jpg", jpeg("420", 16, 16)) for key in ("a", "b")])
    table = csv(tmp_path, "file,y\na,1\nb,{}\nother,\n,\n")
    for cell in ("2", ""):
        table.write_text(f"file,y\na,1\nb,{cell}\nother,\n,\n")
        for streaming in (False, True):
            if cell:
                assert labels(tar, table, Label("y", kind="integer"), streaming=streaming).tolist() == [1, 2]
                continue
            with pytest.raises(ShardError, match="key 'b': 'y' is missing"):
                labels(tar, table, Label("y", kind="integer"), streaming=streaming)


class LazyFrame:
    columns = ("file", "y")

    def __getitem__(self, name):
        raise TypeError("not subscriptable")

    def collect(self):
        raise AssertionError

    collect_schema = collect


def test_tables_of_other_kinds_have_a_remedy(tmp_path, folder):
    with pytest.raises(ShardError, match=r"labels=frame\.collect\(\)"):
        labels(folder, LazyFrame())
    with pytest.raises(ShardError, match=r"cannot be read as CSV .*labels=pandas\.read_excel"):
        labels(folder, csv(tmp_path, b"PK\x03\x04\xff\xfe", "labels.xlsx"))
    with pytest.raises(
        ShardError, match=r"line 2 has 2 cells, .* The first line must be the names of the columns"
    ):
        labels(folder, csv(tmp_path, "# of today\nfile,y\na,1\n"))
    assert labels(folder, csv(tmp_path, "\n\nfile,y\na,1\nb,2\nsub/c.d,3\n")).tolist() == [1, 2, 3]


def test_a_table_of_pyarrow(folder):
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"file": NAMES, "y": [1, 2, 3]})
    assert labels(folder, table).tolist() == [1, 2, 3]


def test_texts_of_digits_in_a_frame_are_not_numbered_by_their_order(folder):
    """Sorted as texts, "10" is before "2": its label would be another number than it."""
    frame = {"file": ["a", "b", "sub/c.d"], "y": ["0", "2", "10"]}
    with pytest.raises(ShardError, match=r'is "0", as are all others.*in a DataFrame as numbers'):
        labels(folder, frame)
    assert labels(folder, frame, Label("y", kind="class")).tolist() == [0, 2, 1]


def test_names_with_accents_match_in_both_forms_of_unicode(tmp_path):
    (tmp_path / "photos").mkdir()
    for name, form in (("é1", "NFC"), ("é2", "NFD")):
        path = tmp_path / "photos" / f"{unicodedata.normalize(form, name)}.jpg"
        path.write_bytes(jpeg("420", 40, 40, seed=1))
    for form in ("NFC", "NFD"):
        keys = [unicodedata.normalize(form, name) for name in ("é1", "é2")]
        made = loader(tmp_path / "photos", {"file": keys, "y": [1, 2]})
        (batch,) = made
        names = [unicodedata.normalize("NFC", key) for key in made.fetcher.shards.keys([0, 1])]
        assert dict(zip(names, batch.label.tolist(), strict=True)) == {"é1.jpg": 1, "é2.jpg": 2}


def test_white_space_around_names_is_ignored_on_both_sides(tmp_path):
    root = tmp_path / "photos"
    names = {" a.jpg": 1, "b.jpg": 2, "c .jpg": 3, "sub/ d.jpg": 4}
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(jpeg("420", 16, 16))
    for keys in (
        [*names],
        [str(Path(name).with_suffix("")) for name in names],
        [f"{root}/{name}" for name in names],
    ):
        table = {"file": [*reversed(keys)], "y": [*reversed(names.values())]}
        made = loader(root, table, Label("y", optional=True))
        (batch,) = made
        found = dict(zip(made.fetcher.shards.keys(range(4)), batch.label.tolist(), strict=True))
        assert found == names, keys
    (root / "a.jpg").write_bytes(jpeg("420", 16, 16))
    split = {"file": [*names, "a.jpg"], "y": [*names.values(), 5]}
    (batch,) = (made := loader(root, split))
    keys = made.fetcher.shards.keys(range(5))
    assert dict(zip(keys, batch.label.tolist(), strict=True)) == {**names, "a.jpg": 5}
    text = "\n".join(["file,y", *(f"{name},{y}" for name, y in {**names, "a.jpg": 5}.items())])
    assert labels(root, csv(tmp_path, text)).tolist() == batch.label.tolist()
    with pytest.raises(ShardError, match=r"that of the samples ' a.jpg' and 'a.jpg'"):
        loader(root, {"file": [" a.jpg", "b.jpg"], "y": [1, 2]}, Label("y", optional=True))

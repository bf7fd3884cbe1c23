"""Sources of the user's own, and what all sources share."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from helpers.loaders import ALL, RUNNERS, digest, load, name_of
from helpers.pictures import jpeg, saved
from helpers.training import fitted, module
from PIL import Image
from tarpeg import Augment, CenterCrop, RandomResizedCrop, ShardDataModule, ShardError, Source, Split
from tarpeg.shards.mapped import Shards
from tarpeg.shards.opening import open_source
from tarpeg.shards.paths import expand


class Copied:
    """The samples of shards, in memory: the four methods that are required, and no more."""

    def __init__(self, folder):
        shards = Shards(expand(folder))
        ids = range(len(shards))
        self.samples = [
            (key, {name: shards.members([id], name)[0] for name in shards.extensions(id)})
            for id, key in zip(ids, shards.keys(ids), strict=True)
        ]

    def __len__(self):
        return len(self.samples)

    def keys(self, ids):
        return [self.samples[id][0] for id in ids]

    def members(self, ids, extension):
        return [self.samples[id][1].get(extension) for id in ids]

    def extensions(self, id):
        return list(self.samples[id][1])


class Subclass(Copied, Source):
    """The same, as a subclass of the protocol."""


@pytest.mark.parametrize("kind", [Copied, Subclass])
@pytest.mark.parametrize("settings", [RUNNERS[0], RUNNERS[3], RUNNERS[6]], ids=name_of)
def test_batches_are_those_of_the_shards(photos, kind, settings):
    options = {"members": ["cls"], "views": 2, **settings}
    assert digest(load(kind(photos), **options)) == digest(load(photos, **options))


class Viewing(Copied):
    """Returns memory in place of bytes."""

    view = memoryview

    def members(self, ids, extension):
        return [content and self.view(content) for content in super().members(ids, extension)]


class Changeable(Viewing):
    view = bytearray


class Strided(Viewing):
    """Memory with gaps."""

    def view(self, content):
        return memoryview(bytes(byte for each in content for byte in (each, 0)))[::2]


class Wide(Viewing):
    """Memory whose items have several bytes."""

    def view(self, content):
        return memoryview(content).cast("H") if len(content) % 2 == 0 else content


@pytest.mark.parametrize("kind", [Viewing, Changeable, Strided, Wide])
def test_members_may_be_memory(photos, kind):
    options = {"members": ["cls", "jpg"], "workers": 1}
    assert digest(load(kind(photos), **options)) == digest(load(photos, **options))


class Sorting(Copied):
    """Writes into the ids that it gets."""

    def members(self, ids, extension):
        ids.sort()
        return super().members(ids, extension)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_source_that_writes_into_its_ids_is_an_error(photos, workers):
    with pytest.raises(ValueError, match="read-only"):
        list(load(Sorting(photos), workers=workers))


def test_defaults(photos):
    shards, source = Shards(expand(photos)), open_source(Copied(photos))
    ids = np.array([3, 1, 2])
    assert [bytes(image.numpy()) for image in source.images(ids)] == [
        bytes(image.numpy()) for image in shards.images(ids)
    ]
    assert source.labels(ids).tolist() == shards.labels(ids).tolist()
    assert np.array_equal(source.sizes(ids), shards.sizes(ids)) and source.sizes(ids).dtype == np.int32
    assert source.shard(0) == "Copied" and source.classes() is None and source.total_bytes == 0
    assert source.has_labels and source.will_need(ids) is None and source.check_unchanged(ids) is None
    again = pickle.loads(pickle.dumps(source))
    assert again.keys(ids) == shards.keys(ids) and again.identity() == source.identity()


def test_own_methods_replace_the_defaults(photos):
    class Own(Copied):
        total_bytes = 7
        has_labels = False

        def shard(self, id):
            return f"table {id}"

        def classes(self):
            return ["cat", "dog"]

    split = Split(Own(photos), CenterCrop(8))
    source = split.open()
    assert (source.total_bytes, source.has_labels, source.shard(3)) == (7, False, "table 3")
    assert split.classes() == ["cat", "dog"]
    with pytest.raises(ShardError, match=r"have no labels"):
        split.check_labels(source)


class Table(Source):
    """Images and labels in lists."""

    def __init__(self, images, labels, extension="jpg"):
        self.rows, self.extension = list(zip(images, labels, strict=True)), extension

    def __len__(self):
        return len(self.rows)

    def keys(self, ids):
        return [f"row{id}" for id in ids]

    def members(self, ids, extension):
        place = {self.extension: 0, "cls": 1}.get(extension)
        return [None if place is None else self.rows[id][place] for id in ids]

    def extensions(self, id):
        return [self.extension, *["cls"] * (self.rows[id][1] is not None)]


def test_errors_contain_the_source_and_the_key():
    picture = jpeg("420", 40, 40)
    for source, text in (
        (Table([picture] * 2, [b"1", None]), r"shard Table, key 'row1' .*'cls', .*\['jpg'\]"),
        (Table([picture] * 2, [b"1", b"x"]), r"shard Table, key 'row1': .*'cls' is 'x'.*64-bit"),
        (Table([picture], [b"1"], "data"), r"key 'row0' .*'jpg', .*\['data', 'cls'\]"),
        (Table([None], [b"1"]), r"'jpg', .* members\(\)"),
    ):
        with pytest.raises(ShardError, match=text):
            list(load(source, CenterCrop(8), workers=0))
    with pytest.warns(UserWarning, match=r"shard Table, key 'row1': .*TRUNCATED .*'row0'"):
        list(load(Table([picture, picture[:200]], [b"1", b"2"]), CenterCrop(8), workers=0, shuffle=False))


def test_other_formats(photos):
    pictures = [saved(Image.new("RGB", (7, 9)), "PNG")] * 2
    with pytest.warns(UserWarning, match="shard Table, key 'row.' is not a JPEG"):
        (batch,) = load(Table(pictures, [b"1", b"2"], "png"), CenterCrop(8), workers=0)
    assert batch.image.shape == (2, 3, 8, 8) and sorted(batch.label.tolist()) == [1, 2]


def test_identity():
    one = Table([b"x"] * 5000, [b"1"] * 5000)
    assert one.identity() == Table([b"y"] * 5000, [b"1"] * 5000).identity()
    assert one.identity() != Table([b"x"] * 4999, [b"1"] * 4999).identity()
    assert Table([], []).identity() != one.identity()


def test_identity_of_shards_and_images(photos, tmp_path):
    paths = expand(photos)
    first = Shards(paths).identity()
    moved = [tmp_path / path.name for path in paths]
    for old, new in zip(paths, moved, strict=True):
        new.write_bytes(old.read_bytes())
    assert Shards(moved).identity() == first, "a copy is the same data"
    assert Shards(moved[::-1]).identity() != first and Shards(moved[:1]).identity() != first
    moved[0].write_bytes(moved[1].read_bytes())
    assert Shards(moved).identity() != first


def test_under_lightning(photos, tmp_path):
    data = module(Subclass(photos), workers=2, augment=Augment())
    net = fitted(tmp_path, data, max_epochs=1)
    assert sorted(net.keys("train", 1)[0]) == ALL


def test_overlap_and_equal_sources(photos):
    class Equal(Copied):
        def __eq__(self, other):
            return type(self) is type(other)

        def __hash__(self):
            return 1

    crop = RandomResizedCrop(16)
    source = Copied(photos)
    ShardDataModule(Split(source, crop), Split(Copied(photos), crop)).setup()
    for train, val in ((source, source), (Equal(photos), Equal(photos))):
        with pytest.raises(ShardError, match=r"\b1 shard .*the source"):
            ShardDataModule(Split(train, crop), Split(val, crop)).setup()
        ShardDataModule(Split(train, crop), Split(val, crop), allow_overlap=True).setup()


def test_a_source_is_not_a_stream(photos):
    with pytest.raises(ValueError, match=r"streaming=True .*shards=.*leave streaming out"):
        Split(Copied(photos), CenterCrop(8), streaming=True)


@pytest.mark.parametrize("kind", [Copied, Subclass])
def test_attributes_in_place_of_methods(photos, kind):
    source = kind(photos)
    source.labels = [1, 2, 3]
    with pytest.raises(ValueError, match=r"'labels', a list, .*labels\(\)"):
        open_source(source)


@pytest.mark.parametrize("base", [Copied, Subclass])
def test_properties_may_be_methods(photos, base):
    class Methods(base):
        def has_labels(self):
            return False

        def total_bytes(self):
            return 7

    source = open_source(Methods(photos))
    assert source.has_labels is False and source.total_bytes == 7


WRONG = {
    "keys": [lambda ids: ["a"], lambda ids: [7] * len(ids), lambda ids: "abcd"[: len(ids)], lambda ids: None],
    "members": [lambda ids, name: [b"1"], lambda ids, name: [1] * len(ids), lambda ids, name: b"12"],
    "labels": [
        lambda ids, name="cls": torch.zeros(len(ids) + 1, dtype=torch.int64),
        lambda ids, name="cls": torch.zeros(len(ids)),
        lambda ids, name="cls": [1] * len(ids),
    ],
    "sizes": [lambda ids: [[3, 4]], lambda ids: np.ones((len(ids), 2)), lambda ids: None],
    "images": [
        lambda ids: [torch.zeros(4, dtype=torch.uint8)],
        lambda ids: [b"jpeg"] * len(ids),
        lambda ids: [torch.zeros(4)] * len(ids),
    ],
}


class Sized(CenterCrop):
    def size_of(self, sizes):
        return 16, 16


@pytest.mark.parametrize("is_subclass", [True, False])
@pytest.mark.parametrize(
    ("method", "number"), [(name, n) for name, each in WRONG.items() for n in range(len(each))]
)
def test_what_a_method_returns_is_checked(method, number, is_subclass):
    wrong = WRONG[method][number]
    bases = (Table,) if is_subclass else (Plain,)
    table = type("Wrong", bases, {method: lambda self, *given: wrong(*given)})(
        [jpeg("420", 40, 40)] * 2, [b"1", b"2"]
    )
    with pytest.raises(ValueError, match=rf"source Wrong: {method}\(.*\) must return .*, got "):
        [*load(table, Sized(16), workers=0, threads=0, shuffle=False)]


class Plain:
    """A table that is no subclass of Source."""

    __init__, __len__, keys, members, extensions = (
        getattr(Table, name) for name in ("__init__", "__len__", "keys", "members", "extensions")
    )


def test_a_checked_source_keeps_its_own_attributes_and_pickles():
    table = Table([jpeg("420", 40, 40)] * 2, [b"1", b"2"])
    source = pickle.loads(pickle.dumps(open_source(table)))
    assert source.extension == "jpg" and source.labels([1, 0]).tolist() == [2, 1]
    assert source.sizes([0]).tolist() == [[40, 40]]

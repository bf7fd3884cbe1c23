"""Sources of a mixture that are fetched together: their rows are those of each source alone."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import tarpeg
import torch
from helpers.pictures import jpeg, picture
from tarpeg import Boxes, LetterBox, Loader, LoaderConfig, Mixture, MixtureLoader, RandomResizedCrop, Split
from torchvision.transforms import v2

NAMES = "abcd"
SHARES = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}


class Pictures(tarpeg.Source):
    """JPEGs with labels in two places, captions and objects; ``odd``: one is a PNG, and one is broken."""

    def __init__(self, count, first, odd):
        self.files = [jpeg("420", 40 + 3 * (seed % 3), 48, first + seed) for seed in range(count)]
        if odd:
            self.files[1], self.files[2] = picture("PNG", 5, size=(44, 61)), b"broken"
        self.first = first

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [f"{self.first}-{id}" for id in ids]

    def members(self, ids, extension):
        found = []
        for id in np.asarray(ids).tolist():
            number = self.first + id
            objects = [{"bbox": [3, 2, 22, 19], "category_id": 1 + id % 7}] * (id % 3)
            document = {"objects": objects, "class": number}
            content = {"jpg": self.files[id], "cls": str(number).encode()}
            content |= {"txt": f"one {number}\ntwo {number}\nthree".encode()}
            found.append((content | {"json": json.dumps(document).encode()}).get(extension))
        return found

    def extensions(self, id):
        return ["jpg", "cls", "txt", "json"]


SOURCES = {
    odd: {name: Pictures(8 - number, 100 * number, odd) for number, name in enumerate(NAMES)}
    for odd in (False, True)
}


class Noise:
    """A step in Python that draws: the numbers of each row are its own."""

    def __call__(self, image):
        return (image + torch.randint(0, 9, image.shape, dtype=torch.uint8)).flip(-1)


def drawn(image):
    return torch.cat([image[1:], image[:1]])


CROPS = {
    "a": RandomResizedCrop(32),
    "b": LetterBox(32, fill=(9, 80, 200)),
    "c": RandomResizedCrop(32),
    "d": LetterBox(32),
}
FLIPS = {"a": 0.0, "b": 0.5, "c": 1.0, "d": 0.5}
STEP, OTHER, POLICY = Noise(), drawn, tarpeg.TrivialAugmentWide()
BOXES = Boxes("json:objects", min_size=0)


class Numbers(tarpeg.Target):
    """A target of the user's own, which gets the source and the numbers that it knows."""

    def read(self, source, ids):
        return [source.first + id for id in np.asarray(ids).tolist()]

    def move(self, value, view):
        return value, view.boxes.tolist()


NUMBERS = Numbers()
# Settings of all sources, those of some, and how many groups these are.
CASES = {
    "crops": ({}, {}, 1),
    "one step": ({"transform": STEP}, {}, 1),
    "a step of one": ({}, {"b": {"transform": STEP}}, 3),
    "a step of one, with captions": ({"members": tarpeg.Text("txt")}, {"b": {"transform": STEP}}, 3),
    "a step of one, with targets": ({"targets": BOXES}, {"b": {"transform": STEP}}, 3),
    "a step of one, with broken targets": (
        {"targets": Boxes("json:objects", labels=[1, 3, 4, 5, 6, 7], min_size=0)},
        {"b": {"transform": STEP}},
        3,
    ),
    "a step of one that moves": ({}, {"b": {"transform": v2.RandomVerticalFlip(0.5)}}, 3),
    "a step of one that moves targets": (
        {"targets": BOXES},
        {"b": {"transform": v2.RandomVerticalFlip(0.5)}},
        3,
    ),
    "policies of one, with targets": ({"targets": BOXES}, {"b": {"transform": POLICY}}, 3),
    "two steps": ({"transform": STEP}, {"c": {"transform": OTHER}, "d": {"transform": OTHER}}, 2),
    "policies": ({"transform": POLICY}, {"c": {"transform": tarpeg.TrivialAugmentWide()}}, 1),
    "other policies": ({"transform": POLICY}, {"c": {"transform": tarpeg.RandAugment()}}, 3),
    "targets": ({"targets": BOXES}, {}, 1),
    "targets in steps": ({"targets": BOXES, "transform": v2.RandomVerticalFlip(0.5)}, {}, 1),
    "other targets": ({"targets": BOXES}, {"a": {"targets": Boxes("json:objects", min_size=9)}}, 2),
    "targets of a user": ({"targets": {"boxes": BOXES, "number": Numbers()}}, {}, 1),
    "one target of a user": ({"targets": NUMBERS}, {}, 1),
    "captions": ({"members": tarpeg.Text("txt", lines=True, dropout=0.3)}, {}, 1),
    "labels": ({}, {"b": {"target": "json:class"}}, 1),
    "subsets": ({}, {"a": {"subset": [2, 3, 4]}, "c": {"subset": [1, 2, 5]}}, 1),
    "interpolation": ({}, {"d": {"interpolation": "bicubic"}}, 2),
}


def splits_of(case, odd=True):
    common, own, _ = CASES[case]
    if case == "targets in steps":  # a step of its own in each
        own = {name: {"transform": v2.RandomVerticalFlip(0.5)} for name in NAMES}
    return {
        name: Split(SOURCES[odd][name], CROPS[name], flip=FLIPS[name], **{**common, **own.get(name, {})})
        for name in NAMES
    }


def rows_of(loader, count=None):
    """What each row of an epoch, or of ``count`` batches of one, is: its fields, and its view."""
    found = []
    while count is None or len(found) < count:
        for batch in loader:
            fields = [
                batch.image,
                *(getattr(batch, name, None) for name in ("label", "targets", "key", "extra")),
            ]
            (view,) = loader.claim().views
            sources = getattr(batch, "source", torch.zeros(len(batch.image)))
            for row, source in enumerate(sources.tolist()):
                found.append(
                    (int(source), [None if each is None else each[row] for each in fields], view.row(row))
                )
        if count is None:
            break
    return found


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return one == other


@pytest.mark.parametrize("odd", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_each_source_alone(case, odd):
    splits = splits_of(case, odd)
    config = LoaderConfig(workers=0, threads=0, max_bad=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = MixtureLoader(Mixture(splits, weights=SHARES, stopping="all_exhausted"), 10, config=config)
        assert len(loader.fetcher._groups) == CASES[case][2]
        rows = [*rows_of(loader), *rows_of(loader)]
        for number, split in enumerate(splits.values()):
            mixed = [(fields, view) for source, fields, view in rows if source == number]
            alone = rows_of(Loader(split, batch_size=1, config=config), len(mixed))
            assert len(mixed) > 2
            for (fields, view), (_, others, other) in zip(mixed, alone, strict=False):
                assert all(map(same, fields, others))
                assert (view.boxes == other.boxes).all() and (view.flips == other.flips).all()
                assert (view.all_places == other.all_places).all()


def test_worker_processes_and_resume_in_the_middle():
    given = Mixture(splits_of("one step"), weights=SHARES, stopping="all_exhausted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = MixtureLoader(given, 10, config=LoaderConfig(workers=0, threads=0, max_bad=1.0))
        there = MixtureLoader(given, 10, config=LoaderConfig(workers=2, max_bad=1.0))
        batches = [*here]
        assert all(torch.equal(one.image, other.image) for one, other in zip(batches, there, strict=True))
        there.close()
        for step in range(len(batches)):
            again = MixtureLoader(given, 10, config=LoaderConfig(workers=0, threads=0, max_bad=1.0))
            again.load_state_dict({**here.state_dict(), "epoch": 0, "batches": step})
            rest = [*again]
            assert len(rest) == len(batches) - step
            assert all(torch.equal(a.image, b.image) for a, b in zip(batches[step:], rest, strict=True))


def test_numbers_of_several_batches_at_once_are_those_of_each():
    given = Mixture(splits_of("crops", odd=False), weights=SHARES, stopping="all_exhausted")
    loader = MixtureLoader(given, 10, config=LoaderConfig(workers=0, threads=0))
    drawing, count = loader.fetcher._groups[0].drawing, 0
    for request in loader._mixed.requests(0):
        origin = request.origin
        alone = request._replace(origin=origin._replace(draws=None))
        assert np.array_equal(origin.draws, drawing.uniforms(alone, 0, RandomResizedCrop(32)))
        count += len({*origin.epochs.tolist()}) > 1
    assert count  # batches in which a source begins its next epoch


class Outside:
    """A crop of the user's own whose boxes are outside of their images."""

    size, draws = (32, 32), 0

    def boxes(self, sizes, draws):
        return np.concatenate([np.zeros_like(sizes), sizes + 1], axis=1).astype(np.int32)


@pytest.mark.parametrize(
    ("crop", "reason"),
    [
        (tarpeg.RandomCrop(32), r"is larger than the image of 20 x 48"),
        (Outside(), r"\(0, 0, 21, 49\), which"),
    ],
    ids=["too small", "outside"],
)
def test_a_box_that_is_wrong_is_an_error_with_its_source_and_key(crop, reason):
    small = Pictures(5, 700, odd=False)
    small.files[3] = jpeg("420", 20, 48, 1)
    if isinstance(crop, Outside):
        small.files = [small.files[3]] * 5
    splits = {"a": Split(SOURCES[False]["a"], RandomResizedCrop(32)), "b": Split(small, crop)}
    given = Mixture(splits, weights={"a": 0.5, "b": 0.5}, stopping="all_exhausted")
    config = LoaderConfig(workers=0, threads=0)
    with pytest.raises(ValueError, match=rf"700-\d.*{reason}"):
        list(MixtureLoader(given, 6, config=config))

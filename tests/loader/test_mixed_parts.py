"""What the sources of a mixture may have, and what takes a mixture: plans, data modules, checkpoints."""

from __future__ import annotations

import json
import warnings

import lightning
import numpy as np
import pytest
import tarpeg
import torch
import torch.distributed.checkpoint as dcp
from helpers.pictures import jpeg, picture
from tarpeg import (
    AspectBuckets,
    Augment,
    Boxes,
    CenterCrop,
    LetterBox,
    Loader,
    LoaderConfig,
    Mixture,
    MixtureLoader,
    RandomResizedCrop,
    ShardError,
    Split,
)
from torchdata.stateful_dataloader import StatefulDataLoader

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


class Pictures(tarpeg.Source):
    """JPEGs with a label, objects and a text; ``odd``: one of them is a PNG, and one is broken."""

    def __init__(self, count, first, odd=False):
        self.files = [jpeg("420", 40 + 3 * (seed % 3), 48, first + seed) for seed in range(count)]
        self.first = first
        if odd:
            self.files[1] = picture("PNG", 5, size=(44, 61))
            self.files[2] = b"broken"

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [f"{self.first}-{id}" for id in ids]

    def members(self, ids, extension):
        contents = {"jpg": self.files.__getitem__, "cls": lambda id: str(self.first + id).encode()}
        contents["txt"] = lambda id: f"text {self.first + id}".encode()
        boxes = [{"bbox": [3, 2, 22, 19], "category_id": 1}, {"bbox": [9, 5, 30, 30], "category_id": 2}]
        contents["json"] = lambda id: json.dumps({"objects": boxes[: 1 + id % 2]}).encode()
        return [contents[extension](id) for id in np.asarray(ids).tolist()]

    def extensions(self, id):
        return ["jpg", "cls", "txt", "json"]


SOURCES = {"a": Pictures(11, 0), "b": Pictures(7, 100), "c": Pictures(3, 200)}


def mixture(sources=SOURCES, crop=RandomResizedCrop(32), **options):  # noqa: B008
    splits = {name: Split(source, crop, flip=0.5, **options) for name, source in sources.items()}
    return Mixture(splits, weights=WEIGHTS, stopping="all_exhausted")


def loader_of(given, **options):
    return MixtureLoader(given, 6, **{"workers": 0, **options})


def alone(split, count, **options):
    """Rows of the split by itself: its first ``count``."""
    loader = Loader(split, batch_size=1, workers=0, **options)
    found = []
    while len(found) < count:
        found += [(*batch, loader.claim()) for batch in loader]
    return found[:count]


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in ("boxes", "labels"))


@pytest.mark.parametrize("crop", [RandomResizedCrop(32), LetterBox(32)], ids=["crop", "padded"])
def test_targets_are_those_of_each_source(crop):
    given = mixture(crop=crop, targets=Boxes("json:objects", min_size=0))
    batches = list(loader_of(given))
    assert type(batches[0]) is tarpeg.MixedTargetBatch
    for number, split in enumerate(given.sources.values()):
        own = [
            (image, target)
            for batch in batches
            for image, target, source in zip(*batch, strict=True)
            if source == number
        ]
        for (image, target), (images, targets, _) in zip(own, alone(split, len(own)), strict=True):
            assert torch.equal(image, images[0]) and equal(target, targets[0])


@pytest.mark.parametrize("runner", [{"workers": 2}, {"config": LoaderConfig(workers=0, threads=2)}])
@pytest.mark.parametrize("has_targets", [False, True])
def test_augment_runs_in_the_workers_with_the_same_bytes(runner, has_targets):
    options = {"targets": Boxes("json:objects", min_size=0)} if has_targets else {}
    given = mixture(**options)
    runs = []
    for each in ({"workers": 0, "config": LoaderConfig(workers=0, threads=0)}, runner):
        augment = Augment(flip=0.5, affine=tarpeg.Affine(degrees=20), color=tarpeg.Color(0.4, 0.4, 0.4))
        loader = MixtureLoader(given, 6, augment=augment, **each)
        runs.append([*loader, *loader])
        if "workers" in runner and each is runner:
            assert loader.fetcher.pixels.worker_augment is not None
        loader.close()
    for one, other in zip(*runs, strict=True):
        assert one.image.dtype == torch.float32 and torch.equal(one.image, other.image)
        assert torch.equal(one.source, other.source)
        if has_targets:
            assert all(map(equal, one.targets, other.targets))


def test_members_come_with_their_rows_and_broken_images_are_replaced():
    odd = {**SOURCES, "b": Pictures(7, 100, odd=True)}
    plain = mixture(odd)
    with pytest.warns(UserWarning, match="takes its place|not a JPEG"):
        images = [batch.image for batch in loader_of(plain)]
    with pytest.warns(UserWarning, match="takes its place|not a JPEG"):
        batches = list(loader_of(mixture(odd, members=["txt"])))
    assert type(batches[0]) is tarpeg.MixedExtraBatch
    assert all(map(torch.equal, images, [batch.image for batch in batches]))
    for batch in batches:
        for label, key, extra, source in zip(*batch[1:], strict=True):
            first = (0, 100, 200)[source]
            assert first <= label < first + 11 and label != 102
            assert key == f"{first}-{label - first}" and extra["txt"] == f"text {label}".encode()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"targets": Boxes("json:objects")}, "targets"),
        ({"members": ["txt"]}, "members"),
    ],
)
def test_sources_of_two_structures_are_an_error_with_both(options, kind):
    splits = dict(mixture().sources)
    splits["b"] = Split(SOURCES["b"], RandomResizedCrop(32), **options)
    with pytest.raises(ValueError, match=rf"{kind} .*'a' and 'b'"):
        loader_of(Mixture(splits, weights=WEIGHTS))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tarpeg.Masks("png", dtype="uint8"), tarpeg.Masks("png", dtype="int64")),
        (
            tarpeg.Keypoints("json:objects", flip_pairs=[], count=5),
            tarpeg.Keypoints("json:objects", flip_pairs=[], count=3),
        ),
    ],
    ids=["types of masks", "numbers of keypoints"],
)
def test_targets_that_cannot_be_in_one_batch_are_an_error_with_both(one, other):
    splits = {
        name: Split(source, RandomResizedCrop(32), targets=one if name == "a" else other)
        for name, source in SOURCES.items()
    }
    with pytest.raises(ValueError, match=r"targets .*'a' and 'b'"):
        loader_of(Mixture(splits, weights=WEIGHTS))


def test_crops_that_differ_make_the_same_rows_as_alone():
    splits = dict(mixture().sources)
    splits["b"] = Split(SOURCES["b"], CenterCrop(32))
    loader = loader_of(Mixture(splits, weights=WEIGHTS, stopping="all_exhausted"))
    for batch in loader:
        request = loader.claim()
        assert len(request.views[0]) == len(request.ids)
        for row, (image, source) in enumerate(zip(batch.image, batch.source, strict=True)):
            view = request.views[0].row(row)
            source = SOURCES["abc"[source]]
            file = source.files[int(batch.label[row]) - source.first]
            content = torch.frombuffer(bytearray(file), dtype=torch.uint8)
            decoded, _ = tarpeg.decode_batch(
                [content], torch.from_numpy(view.boxes), view.size, torch.from_numpy(view.flips)
            )
            assert torch.equal(decoded[0], image)


@pytest.mark.parametrize("is_odd", [False, True])
@pytest.mark.parametrize("has_targets", [False, True])
@pytest.mark.parametrize("fidelity", ["fast", "exact"])
def test_padded_and_other_crops_make_the_same_rows_as_alone(fidelity, has_targets, is_odd):
    crops = {"a": LetterBox(32, fill=(9, 80, 200)), "b": RandomResizedCrop(32), "c": LetterBox(32, fill=7)}
    options = {"targets": Boxes("json:objects", min_size=0)} if has_targets else {}
    sources = {**SOURCES, "b": Pictures(7, 100, odd=is_odd)}  # odd: rows of b are made apart
    splits = {
        name: Split(sources[name], crop, flip=0.5, fidelity=fidelity, **options)
        for name, crop in crops.items()
    }
    given = Mixture(splits, weights=WEIGHTS, stopping="all_exhausted")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = loader_of(given)
        rows = []
        for batch in loader:
            (view,) = loader.claim().views
            for number, (image, target, source) in enumerate(zip(*batch, strict=True)):
                rows.append((int(source), image, target, view.row(number)))
        for number, split in enumerate(splits.values()):
            own = [row[1:] for row in rows if row[0] == number]
            for row, (images, targets, request) in zip(own, alone(split, len(own)), strict=True):
                image, target, view = row
                assert torch.equal(image, images[0]) and (view.boxes == request.views[0].boxes).all()
                assert equal(target, targets[0]) if has_targets else target == targets[0]


@pytest.mark.parametrize("weight", [0.2, 0.0])
def test_an_empty_source_is_named(weight):
    given = mixture({**SOURCES, "c": Pictures(0, 0)})
    with pytest.raises(ShardError, match="source 'c'"):
        loader_of(Mixture(given.sources, weights={"a": 0.5, "b": 0.3, "c": weight}))


def test_a_plan_of_an_epoch_is_what_comes():
    loader = loader_of(mixture())
    plan = tarpeg.plan_epoch(loader, 0)
    batches = list(loader)
    assert plan.batches == len(batches) == len(loader)
    assert plan.samples == sum(len(batch.label) for batch in batches)
    assert [(each.shape, each.samples) for each in plan.shapes] == [((32, 32), plan.samples)]
    ranks = [tarpeg.plan_epoch(loader.on_rank(rank, 2)) for rank in range(2)]
    assert [each.world for each in ranks] == [2, 2]


class Model(lightning.LightningModule):
    """Remembers the labels that it gets."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = []

    def training_step(self, batch):
        assert batch.image.dtype == torch.float32
        self.seen.append(batch.label.tolist())
        return self.layer(batch.image.mean().reshape(1, 1)).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def test_a_data_module_trains_on_a_mixture(tmp_path):
    given = mixture()
    val = Split(Pictures(4, 300), CenterCrop(32))
    data = tarpeg.ShardDataModule(train=given, val=val, batch_size=6, workers=0, augment=Augment())
    assert [*data.splits] == ["train/a", "train/b", "train/c", "val", "test", "predict"]
    model = Model()
    options = {
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
        "default_root_dir": tmp_path,
    }
    # The monitor's measurement of an image is for one split alone.
    stall = tarpeg.DataStallMonitor(0.1)
    trainer = lightning.Trainer(max_epochs=2, limit_val_batches=0, callbacks=[stall], **options)
    trainer.fit(model, data)
    loader = loader_of(given)
    expected = [batch.label.tolist() for _ in range(2) for batch in loader]
    assert model.seen == expected
    assert next(iter(data.source_dataloader("train/b"))).label.min() >= 100
    page = tarpeg.contact_sheet(data, tmp_path / "page.png", split="train/b", samples=3)
    assert page.exists()
    with pytest.raises(ValueError, match="keys=True"):
        tarpeg.ShardDataModule(train=given, keys=True)


@pytest.fixture(params=["plain", "buckets", "mixture"])
def make(request):
    source = Pictures(20, 0)

    def plain():
        return Loader(Split(source, RandomResizedCrop(32)), batch_size=6, workers=0)

    def buckets():
        crop = AspectBuckets(buckets=[(16, 24), (20, 20)], upscale=True)
        return Loader(Split(source, crop), batch_size=6, workers=0)

    return {"plain": plain, "buckets": buckets, "mixture": lambda: loader_of(mixture())}[request.param]


def labels(batches):
    return [batch.label.tolist() for batch in batches]


def test_states_through_a_stateful_data_loader(make):
    whole = labels(make())
    for step in range(1, len(whole)):
        first = StatefulDataLoader(tarpeg.Dataset(make()), batch_size=None)
        batches = iter(first)
        for _ in range(step):
            next(batches)
        second = StatefulDataLoader(tarpeg.Dataset(make()), batch_size=None)
        second.load_state_dict(first.state_dict())
        assert labels(second) == whole[step:]


def test_states_through_a_distributed_checkpoint(make, tmp_path):
    first = make()
    whole = labels(first)
    for step in (1, len(whole) // 2, len(whole)):
        one, other = make(), make()
        batches = iter(one)
        for _ in range(step):
            next(batches)
        dcp.save({"loader": one}, checkpoint_id=tmp_path / str(step))
        dcp.load({"loader": other}, checkpoint_id=tmp_path / str(step))
        following = labels(one) if step == len(whole) else whole[step:]
        assert labels(other) == following

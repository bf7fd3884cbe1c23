"""Mixtures of samples with several images: their rows are those of each source alone."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers.pictures import saved
from helpers.several import SIDES, pair, pairs
from PIL import Image
from tarpeg import (
    Augment,
    FloatMap,
    LetterBox,
    Loader,
    LoaderConfig,
    Mixture,
    MixtureLoader,
    RandomResizedCrop,
    Split,
)

LIST = [f"{side}.jpg" for side in SIDES]
CROP = RandomResizedCrop(32)
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
CASES = {
    "shared": {},
    "apart": {"shared_box": False},
    "two sizes": {"crop": [RandomResizedCrop(32), RandomResizedCrop((20, 40))]},
    "padded": {"crop": LetterBox((24, 40), fill=(9, 80, 200))},
    "one": {"image": "right.jpg"},
    "targets": {"targets": FloatMap("left.depth.png"), "target": None},
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Shards, shards with two broken samples, and a packed cache; of each sample a map of its left image."""
    folder, found = tmp_path_factory.mktemp("mixed"), {}
    for first, name in enumerate("abc"):
        changed = {}
        for number in range(11):
            files = {f"{side}.jpg": data for side, data in pair(number + first).items()}
            if name == "b" and number in (2, 5):
                files = {"left.jpg": files["left.jpg"]} | ({"right.jpg": b"broken"} if number == 2 else {})
            height, width = 64 + 8 * ((number + first) % 3), 80 + number + first
            depth = np.random.default_rng(number).integers(0, 255, (height, width)).astype(np.uint8)
            files["left.depth.png"] = saved(Image.fromarray(depth), "PNG")
            changed[f"k{number:02d}"] = files | {"cls": b"%d" % (100 * first + number)}
        found[name] = pairs(folder / f"{name}.tar", changed)
    cache = folder / "cache"
    tarpeg.build_cache(found["c"], str(cache), codec=tarpeg.Packed(), images=LIST)
    return found | {"c": str(cache)}


def splits_of(sources, **options):
    given = {"crop": CROP, "flip": 0.5, "image": LIST, **options}
    crop = given.pop("crop")
    return {name: Split(source, crop, **given) for name, source in sources.items()}


def loader_of(splits, **options):
    config = LoaderConfig(**{"batch_size": 6, "workers": 0, **options.pop("config", {})})
    mixture = Mixture(splits, weights=WEIGHTS, stopping="all_exhausted")
    return MixtureLoader(mixture, config=config, **options)


def rows(batch):
    """Source, label or nothing, and the images (and maps) of each row."""
    parts = batch.image if isinstance(batch.image, list) else [batch.image]
    maps = getattr(batch, "targets", None)
    maps = [maps] if isinstance(maps, torch.Tensor) else maps or []
    found = []
    for row in range(parts[0].shape[-4]):
        images = [part[..., row, :, :, :].numpy().tobytes() for part in parts]
        label = int(batch.label[row]) if hasattr(batch, "label") else None
        found.append((label, images, [each[row].numpy().tobytes() for each in maps]))
    return found


def by_source(loader, epochs=2):
    found = [[], [], []]
    for _ in range(epochs):
        for batch in loader:
            for source, row in zip(batch.source.tolist(), rows(batch), strict=True):
                found[source].append(row)
    loader.close()
    return found


@pytest.mark.filterwarnings("ignore:.*takes its place")
@pytest.mark.parametrize(
    ("case", "names"), [*((case, "abc") for case in CASES), ("shared", "aba"), ("targets", "ccc")]
)
def test_rows_are_those_of_each_source_alone(sources, case, names):
    """Of a cache among shards, and of shards or caches alone."""
    given = {name: sources[each] for name, each in zip("abc", names, strict=True)}
    splits = splits_of(given, **CASES[case])
    for own, split in zip(by_source(loader_of(splits)), splits.values(), strict=True):
        loader, alone = Loader(split, batch_size=1, workers=0), []
        while len(alone) < len(own):
            alone += [row for batch in loader for row in rows(batch)]
        assert len(own) > 3 and own == alone[: len(own)]


@pytest.mark.filterwarnings("ignore:.*takes its place")
def test_workers_ranks_resume_and_views(sources):
    splits = splits_of(sources, **CASES["targets"])
    whole = [rows(batch) for batch in loader_of(splits)]
    workers = loader_of(splits, config={"workers": 2})
    assert [rows(batch) for batch in workers] == whole
    workers.close()
    loader, states = loader_of(splits), []
    for batch in loader:
        states.append(loader.state_dict())
        views = loader.claim().views
        assert [len(view) for view in views] == [6, 6] and len(batch.targets) == 2
    for step in (1, len(whole) // 2):
        other = loader_of(splits)
        other.load_state_dict(states[step - 1])
        assert [rows(batch) for batch in other] == whole[step:]
    config = {"global_batch_size": 6}
    parts = [
        [rows(batch) for batch in loader_of(splits, config=config, rank=rank, world=2)] for rank in range(2)
    ]
    for batch, *found in zip(whole, *parts, strict=True):
        assert sorted(batch) == sorted(row for part in found for row in part)


@pytest.mark.filterwarnings("ignore:.*takes its place")
def test_a_plan_and_a_training_on_two_images(sources, tmp_path):
    splits = splits_of(sources)
    plan = tarpeg.plan_epoch(loader_of(splits))
    assert plan.images == 2 * plan.samples and plan.batches == len(loader_of(splits))
    mixture = Mixture(splits, weights=WEIGHTS)
    data = tarpeg.ShardDataModule(train=mixture, batch_size=6, workers=0, augment=Augment())
    loader = data.train_dataloader()
    batch = next(iter(data.augmented(loader)))
    assert batch.image.shape == (2, 6, 3, 32, 32) and batch.image.dtype == torch.float32
    assert batch.source.tolist() == sorted(batch.source.tolist())
    sheet = tarpeg.contact_sheet(data, tmp_path / "a.png", samples=2, split="train/a")
    assert sheet.stat().st_size > 1000


@pytest.mark.parametrize(
    "other",
    [
        {"image": LIST[::-1]},
        {"crop": RandomResizedCrop(32, scale=(0.5, 1))},
        {"shared_box": False},
        {"flip": 0.0},
        {"interpolation": "bicubic"},
    ],
    ids=str,
)
def test_sources_that_differ_are_an_error_with_both(sources, other):
    splits = splits_of(sources)
    splits["b"] = splits_of(sources, **other)["b"]
    with pytest.raises(ValueError, match=r"sources 'a' and 'b' .*image=\['left.jpg', 'right.jpg'\].*same"):
        loader_of(splits)


def test_one_image_and_several_or_a_pattern(sources):
    splits = splits_of(sources)
    splits["b"] = splits_of(sources, image="left.jpg")["b"]
    with pytest.raises(ValueError, match="images of the sources 'a' and 'b'"):
        loader_of(splits)
    with pytest.raises(ValueError, match=r"sources\['a'\] of Mixture has image='\*.jpg', a pattern"):
        Mixture({"a": Split(sources["a"], CROP, image="*.jpg")}, weights={"a": 1})

"""What comes next, as a user's own code: a source, a target and a crop, without touching the package.

For any number of workers and threads they give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest
import tarpeg
import torch
from helpers.loaders import RUNNERS, load, name_of
from helpers.pictures import jpeg, saved
from PIL import Image
from tarpeg import Augment, CenterCrop, RandomResizedCrop, ShardError, Split, Whole
from tarpeg.loader.batch import KeyedTargetBatch, TargetBatch
from torchvision.transforms import v2

COUNT = 23
SIDES = [(48, 64), (64, 48), (56, 56), (40, 80)]


class Memory(tarpeg.Source):
    """A source in memory: a white square of 6 pixels in a black image, and the point in its middle."""

    def __init__(self, broken=()):
        self.samples = []
        for number in range(COUNT):
            height, width = SIDES[number % len(SIDES)]
            y, x = 8 + 7 * number % (height - 16), 8 + 5 * number % (width - 16)
            image = torch.zeros((3, height, width), dtype=torch.uint8)
            image[:, y - 3 : y + 3, x - 3 : x + 3] = 255
            encoded = jpeg("420", height, width, rgb=image.permute(1, 2, 0).contiguous().numpy())
            content = b"broken" if number in broken else encoded
            self.samples.append({"jpg": content, "json": json.dumps({"points": [[x, y]]}).encode()})

    def __len__(self):
        return len(self.samples)

    def keys(self, ids):
        return [f"memory/{id:03d}" for id in np.asarray(ids).tolist()]

    def members(self, ids, extension):
        return [self.samples[id].get(extension) for id in np.asarray(ids).tolist()]

    def extensions(self, id):
        return list(self.samples[id])


class Points:
    """A target that moves points."""

    def read(self, source, ids):
        return [json.loads(text)["points"] for text in source.members(ids, "json")]

    def move(self, value, view):
        return torch.from_numpy(view.points(value))


@dataclass(frozen=True)
class Buckets:
    """The whole image, as a wide, a tall or a square one: the same for all images of a batch."""

    size: tuple[int, int] = (32, 32)
    draws: int = 0

    def size_of(self, sizes):
        mean = np.log(sizes[:, 1] / sizes[:, 0]).mean()
        if abs(mean) <= 0.1:
            return self.size
        return (24, 40) if mean > 0 else (40, 24)

    def boxes(self, sizes, draws):
        return Whole(1).boxes(sizes)


def digest(batches):
    sha = hashlib.sha256()
    for batch in batches:
        sha.update(repr((tuple(batch.image.shape), batch.targets, batch.key)).encode())
        sha.update(batch.image.movedim(-3, -1).contiguous().numpy().tobytes())
    return sha.hexdigest()


def seams(runner, **options):
    """A loader of all three."""
    split = Split(Memory(), options.pop("crop", Buckets()), targets=Points(), flip=0.5, **options)
    return load(None, split=split, **runner)


@pytest.fixture(scope="module")
def first():
    loader = seams(RUNNERS[0])
    return [digest(loader), digest(loader)]


def test_targets_of_ones_own_are_a_list_that_torch_reads():
    (batch,) = tarpeg.Loader(
        Split(Memory(), CenterCrop(32), targets=Points()), batch_size=64, training=False, workers=0
    )
    assert torch.stack(batch.targets).shape[0] == len(batch.image)


@pytest.mark.parametrize("runner", RUNNERS[1:], ids=name_of)
def test_a_source_a_target_and_a_crop_of_ones_own_give_the_same_bytes(first, runner):
    loader = seams(runner)
    assert [digest(loader), digest(loader)] == first and first[0] != first[1]
    loader.close()


def brightest(image):
    """The middle of the white square, (x, y) in pixel edges."""
    height, width = image.shape[-2:]
    weights = image.float().mean(0).sub(100).clamp(min=0)
    xs, ys = torch.arange(width) + 0.5, torch.arange(height) + 0.5
    return torch.stack([(weights * xs).sum(), (weights * ys[:, None]).sum()]) / weights.sum()


def check_points(images, targets, tolerance=1.0):
    """Points that are well inside the image are in the middle of the white square. Returns how many."""
    height, width = images.shape[-2:]
    seen = 0
    for image, points in zip(images, targets, strict=True):
        x, y = points[0].tolist()
        if 8 < x < width - 8 and 8 < y < height - 8:
            seen += 1
            assert (brightest(image) - points[0]).abs().max() < tolerance
    return seen


def test_points_stay_on_what_they_mark():
    crops = Buckets(), RandomResizedCrop(48, scale=(0.5, 1.0)), CenterCrop(40)
    for crop in crops:
        seen = 0
        for batch in seams({"workers": 0, "threads": 1}, crop=crop):
            seen += check_points(batch.image, batch.targets)
        assert seen > 5, crop


def test_sizes_follow_the_images_and_fit_into_the_memory():
    shapes = {tuple(batch.image.shape[-2:]) for batch in seams({"workers": 1}, shuffle=False)}
    assert len(shapes) > 1 and shapes <= {(32, 32), (24, 40), (40, 24)}


@pytest.mark.parametrize("size", [(33, 32), (0, 5), "wide", (3.5, 4)], ids=repr)
def test_sizes_that_are_not_as_they_must_be(size):
    class Odd(Buckets):
        def size_of(self, sizes):
            return size

    with pytest.raises(ValueError, match=r"size_of\(\) returned"):
        next(iter(seams({"workers": 0, "threads": 0}, crop=Odd())))


def test_a_substitutes_target_takes_the_place_of_a_broken_images():
    split = Split(Memory(broken=(3, 11)), RandomResizedCrop(48, scale=(0.5, 1.0)), flip=0.5, targets=Points())
    loader = load(None, split=split, workers=0, threads=1, max_bad=1.0)
    seen = 0
    with pytest.warns(UserWarning, match="takes its place"):
        for batch in loader:
            assert not {"memory/003", "memory/011"} & set(batch.key)
            seen += check_points(batch.image, batch.targets)
    assert seen > 5 and loader.substituted == 2


def test_images_are_left_out_of_predictions_with_their_targets():
    split = Split(Memory(broken=(3, 11)), [Whole(32), Whole(24)], targets=Points(), shuffle=False)
    loader = load(None, split=split, workers=0, threads=0, on_error="leave_out", shuffle=False, max_bad=1.0)
    with pytest.warns(UserWarning, match="left out"):
        batches = list(loader)
    for batch in batches:
        assert [len(view) for view in batch.targets] == [len(batch.key)] * 2
    assert sum(len(batch.key) for batch in batches) == COUNT - 2
    request = loader.claim()
    assert [len(view) for view in request.views] == [len(request.ids)] * 2


def test_several_views_have_a_list_each():
    crops = [RandomResizedCrop(48, scale=(0.5, 1.0))] * 2 + [CenterCrop(40)]
    seen = 0
    for batch in seams({"workers": 1}, crop=crops):
        assert len(batch.targets) == 3 and len(batch.image) == 2
        views = [*batch.image[0], *batch.image[1]]
        seen += sum(
            check_points(images, targets) for images, targets in zip(views, batch.targets, strict=True)
        )
    assert seen > 15


class Clipped(Points):
    """Points as text, of which those outside the image are dropped: a value cannot be moved twice."""

    def read(self, source, ids):
        return [text.decode() for text in source.members(ids, "json")]

    def move(self, value, view):
        moved = view.points(json.loads(value)["points"])
        height, width = view.size
        return moved[((moved >= 0) & (moved < (width, height))).all(axis=1)].tolist()


@pytest.mark.parametrize("policy", [None, tarpeg.RandAugment()], ids=["affine", "policy"])
def test_targets_follow_augment_wherever_it_runs(policy):
    found = []
    for options in ({"workers": 1}, {"workers": 0, "threads": 0}, {"workers": 0, "threads": 2}):
        augment = Augment(flip=0.5, affine=tarpeg.Affine(degrees=20, translate=0.3), policy=policy)
        split = Split(Memory(), CenterCrop(48), targets=Clipped())
        config = tarpeg.LoaderConfig(batch_size=4, **options)
        loader = tarpeg.Loader(split, augment=augment, device="cpu", config=config)
        batches = list(loader)
        assert all(isinstance(batch, TargetBatch) for batch in batches)
        found.append([batch.targets for batch in batches])
        loader.close()
        data = tarpeg.ShardDataModule(split, batch_size=4, augment=augment, **options)
        found.append([batch.targets for batch in data.augmented(data.train_dataloader())])
        plain = [batch.targets for batch in data.train_dataloader()]
        data.teardown()
        assert plain != found[0]
    assert all(targets == found[0] for targets in found)
    assert any(not points for targets in found[0] for points in targets)


def test_points_stay_on_what_they_mark_under_augment():
    augment = Augment(
        mean=(0, 0, 0), std=(1, 1, 1), flip=0.5, affine=tarpeg.Affine(degrees=30, translate=0.1)
    )
    for options in ({"workers": 1}, {"workers": 0, "threads": 1}):
        config = tarpeg.LoaderConfig(batch_size=4, **options)
        split = Split(Memory(), RandomResizedCrop(48, scale=(0.5, 1.0)), targets=Points())
        loader, seen = tarpeg.Loader(split, augment=augment, config=config), 0
        for batch in loader:
            seen += check_points(batch.image * 255, batch.targets)
        loader.close()
        assert seen > 5


def test_an_image_may_have_no_points():
    view = tarpeg.View.whole((40, 60), (20, 30))
    assert view.points([]).shape == (0, 2)


def test_targets_follow_policies_of_the_transform():
    transform = v2.Compose([v2.CenterCrop(40), tarpeg.TrivialAugmentWide()])
    split = Split(Memory(), transform=transform, targets=Points())
    views = [view for batch, loader in claimed(split) for view in loader.views]
    assert any(view.affine is not None and not np.allclose(view.affine, np.eye(2, 3)) for view in views)


def claimed(split, **options):
    loader = load(None, split=split, workers=0, threads=0, **options)
    for batch in loader:
        yield batch, loader.claim()


def test_what_was_drawn_reaches_the_consumer():
    split = Split(Memory(), RandomResizedCrop(32), flip=0.5, target=None)
    for workers in (0, 1):
        loader = load(None, split=split, workers=workers)
        for _ in loader:
            request = loader.claim()
            (view,) = request.views
            assert len(view) == len(request.ids) and view.size == (32, 32)
            wanted = [SIDES[id % len(SIDES)] for id in request.ids.tolist()]
            assert list(map(tuple, view.sizes.tolist())) == wanted
            (again,) = loader.fetcher.draw_views(request, view.sizes)
            assert (again.boxes == view.boxes).all() and (again.flips == view.flips).all()
        loader.close()


def test_named_targets_and_keys():
    split = Split(Memory(), Whole(32), targets={"points": Points(), "twice": Points()})
    batch = next(iter(load(None, split=split, workers=0, threads=0)))
    assert isinstance(batch, KeyedTargetBatch) and set(batch.targets[0]) == {"points", "twice"}
    batch = next(iter(load(None, split=split, workers=0, threads=0, keys=False)))
    assert isinstance(batch, TargetBatch) and len(batch) == 2 and split.target is None


class Failing(Points):
    def read(self, source, ids):
        values = super().read(source, ids)
        if 7 in np.asarray(ids).tolist():
            raise KeyError("boxes")
        return values


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_a_target_have_shard_and_key(workers):
    split = Split(Memory(), Whole(32), targets=Failing())
    with pytest.raises(ShardError, match=r"Memory, key 'memory/007'.*read\(\)"):
        list(load(None, split=split, workers=workers))


@pytest.mark.parametrize(
    "transform", [[v2.Resize(40), v2.RandomCrop(32)], [v2.CenterCrop(60)]], ids=["python", "small"]
)
def test_geometry_that_only_steps_in_python_know_is_an_error(transform):
    split = Split(Memory(), transform=v2.Compose(transform), targets=Points())
    with pytest.raises(ShardError, match=r"key 'memory/\d+'.*move\(\).*not known"):
        list(load(None, split=split, workers=0, threads=0))


@pytest.mark.parametrize(
    "options",
    [
        {"targets": Points},
        {"targets": {}},
        {"targets": {"points": 3}},
        {"targets": Points(), "target": "json:label"},
        {"targets": Points(), "members": ["json"]},
    ],
    ids=["a class", "nothing", "a number", "target", "members"],
)
def test_wrong_settings(options):
    with pytest.raises(ValueError, match="targets="):
        Split(Memory(), Whole(32), **options)


class Unmoved(tarpeg.Target):
    def read(self, source, ids):
        return [0] * len(ids)


class Broken(Points):
    def move(self, value, view):
        raise KeyError("box")


def test_a_target_without_a_method_is_refused_and_errors_have_names_of_types():
    for targets in (Unmoved(), {"points": Points(), "none": Unmoved()}):
        with pytest.raises(ValueError, match=r"targets=.*Unmoved must have a method move\(\)"):
            Split(Memory(), Whole(32), targets=targets)
    for targets in (Broken(), {"a": Broken()}):
        split = Split(Memory(), Whole(32), targets=targets)
        with pytest.raises(ShardError, match=r"targets=Broken failed in move\(\): KeyError"):
            next(iter(load(None, split=split, workers=0, threads=0)))


class Unread(Points):
    returned = None

    def read(self, source, ids):
        return self.returned


@pytest.mark.parametrize(
    ("returned", "text"), [(None, "a NoneType"), (iter("ab"), "a str_.*iterator"), ([1], "1 values")]
)
def test_what_read_must_return(returned, text):
    target = Unread()
    target.returned = returned
    split = Split(Memory(), Whole(32), targets={"a": target}, shuffle=False)
    with pytest.raises(
        ValueError, match=rf"key '.*targets=Unread: read\(\) returned {text} for .* return a list"
    ):
        next(iter(load(None, split=split, workers=0, threads=0)))


class Lazy(Points):
    def move(self, value, view):
        return (each for each in value)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"target": None, "members": ["json"], "decode": lambda key, members: open}, None),
        (
            {"target": None, "members": ["json"], "decode": lambda key, members: (each for each in members)},
            "decode= returned a generator",
        ),
        (
            {"target": None, "members": ["json"], "decode": lambda key, members: lambda: key},
            "decode= returned a function",
        ),
        ({"targets": {"fine": Points(), "lazy": Lazy()}}, r"move\(\) of targets=Lazy returned a generator"),
    ],
)
def test_what_does_not_go_from_a_worker_process_to_this_one(options, argument):
    loader = load(None, split=Split(Memory(), Whole(32), shuffle=False, **options), workers=1)
    if argument is None:
        assert next(iter(loader)).extra[0] is open
        return
    with pytest.raises(ShardError, match=rf"key '.*{argument}.* pickle .*workers=0"):
        next(iter(loader))


def test_size_of_gets_the_sizes_of_images_that_pillow_decodes():
    seen = []

    class Watched(Buckets):
        def size_of(self, sizes):
            seen.append(sizes.tolist())
            return 24, 40

    class Pngs(Memory):
        def members(self, ids, extension):
            return [b and as_png(b) if extension == "jpg" else b for b in super().members(ids, extension)]

    with pytest.warns(UserWarning, match="not a JPEG"):
        next(iter(load(None, split=Split(Pngs(), Watched(), targets=Points()), workers=0, threads=0)))
    next(iter(load(None, split=Split(Memory(), Watched(), targets=Points()), workers=0, threads=0)))
    assert seen[0] == seen[1] and min(map(min, seen[0])) > 0


def as_png(data):
    return saved(Image.open(io.BytesIO(data)), "PNG")


class Scaled(torch.nn.Module):
    def forward(self, images):
        return images / 255


class InPlace(Scaled):
    def geometry(self, params, size):
        return None


def test_modules_that_would_leave_targets_behind_are_refused():
    split = Split(Memory(), CenterCrop(48), targets=Points())
    for augment, text in (
        (Augment(mix=tarpeg.Mix(10, mixup=0.2)), "mixes images and labels"),
        (Scaled(), "augment=Scaled moves.*method geometry"),
        (torch.nn.Sequential(v2.ToDtype(torch.float32), v2.Resize(20)), "augment=Sequential"),
    ):
        with pytest.raises(ValueError, match=text):
            tarpeg.Loader(split, 4, workers=0, augment=augment)
    steps = v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)
    for augment in (InPlace(), torch.nn.Sequential(*steps), None):
        tarpeg.Loader(split, 4, workers=0, augment=augment)
    tarpeg.Loader(split, 4, workers=0, training=False, augment=Augment(mix=tarpeg.Mix(10, mixup=0.2)))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"crop": [CenterCrop(48), CenterCrop(32)]}, "2 views"),
        ({"crop": CenterCrop(48), "target": None}, "target=None"),
    ],
)
def test_what_cannot_be_mixed_is_refused_before_the_first_batch(options, text):
    mixing = Augment(mix=tarpeg.Mix(10, mixup=0.2))
    split = Split(Memory(), **options)
    for augment in (mixing, *([[mixing, Augment()]] if "views" in text else [])):
        with pytest.raises(ValueError, match=f"mix=Mix.*train has {text}.*mix=None"):
            tarpeg.ShardDataModule(train=split, augment=augment, workers=0)
        with pytest.raises(ValueError, match=f"mix=Mix.*{text}"):
            tarpeg.Loader(split, 4, workers=0, augment=augment)
    evaluated = Split(Memory(), **{**options, "target": None})
    tarpeg.Loader(evaluated, 4, workers=0, training=False, augment=mixing)


def test_policies_are_drawn_once(monkeypatch):
    calls = []
    program = tarpeg.TrivialAugmentWide.program
    monkeypatch.setattr(
        tarpeg.TrivialAugmentWide, "program", lambda *given: calls.append(1) or program(*given)
    )
    transform = v2.Compose([v2.CenterCrop(40), tarpeg.TrivialAugmentWide()])
    for options in ({"target": None}, {"targets": Points()}):
        calls.clear()
        batches = list(claimed(Split(Memory(), transform=transform, **options)))
        assert len(calls) == len(batches)


class Unreadable(Memory):
    """Sizes that cannot be read; and shards that have changed."""

    def __init__(self, has_changed):
        super().__init__()
        self.has_changed = has_changed

    def sizes(self, ids):
        raise ShardError("no sizes")

    def check_unchanged(self, ids):
        if self.has_changed:
            raise ShardError("the shard has changed")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("has_changed", "text"), [(False, "no sizes"), (True, "has changed")])
def test_sizes_that_cannot_be_read_are_the_error_of_the_batch(workers, has_changed, text):
    split = Split(Unreadable(has_changed), Buckets(), target=None)
    loader = load(None, split=split, workers=workers, threads=0)
    with pytest.raises(ShardError, match=text):
        list(loader)
    loader.close()


class Typed(Memory):
    """A source that refuses ids that are not an array."""

    def members(self, ids, extension):
        assert ids.dtype == np.int64
        if extension == "json":
            return [b'{"label": 3}'] * len(ids)
        return super().members(ids, extension)


def test_a_source_gets_arrays_of_ids():
    split = Split(Typed(), CenterCrop(8), target="json:label")
    assert next(iter(load(None, split=split, workers=0, threads=0))).label.tolist() == [3] * 4


def test_a_sheet_of_a_split_with_targets(tmp_path):
    split = Split(Memory(), CenterCrop(40), targets=Points())
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0, augment=Augment(flip=0.5))
    assert tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=6).exists()

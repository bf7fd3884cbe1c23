"""``CenterCrop(size, shorter=)`` at ``fidelity="exact"`` is torchvision's Resize and CenterCrop."""

from __future__ import annotations

import numpy as np
import pytest
import tarpeg
import torch
from helpers import reference
from helpers.loaders import load
from helpers.pictures import jpeg, picture
from helpers.scenes import Scenes, objects
from helpers.small_tars import sample
from PIL import Image
from tarpeg import CenterCrop, Progressive, RandomResizedCrop, Split
from tarpeg.loader import fetch
from torchvision import tv_tensors
from torchvision.transforms import v2

SIZES = [(150, 200), (200, 151), (113, 97), (64, 64), (65, 300), (40, 31)]
CROP = CenterCrop(56, shorter=64)
FOUND = tarpeg.Boxes("json:objects")


@pytest.fixture
def shard(shard_of):
    images = [sample(n, jpeg("420", *size, seed=n)) for n, size in enumerate(SIZES)]
    return shard_of(*images, sample(6, picture("PNG"), "png"))


def exact(path, crop=CROP, **options):
    options = {"fidelity": "exact", "flip": 0.0, "shuffle": False, "workers": 0, "batch_size": 7, **options}
    return load(path, crop, **options)


def theirs(loader, shorter=64, size=56, mode="bilinear", is_gray=False):
    steps = v2.Compose([v2.Resize(shorter, v2.InterpolationMode(mode)), v2.CenterCrop(size)])
    found = []
    for file in loader.fetcher.shards.images(np.arange(7)):
        image = reference.decode(file)
        if mode in ("lanczos", "box"):
            image = Image.fromarray(image.movedim(0, -1).numpy())
        done = steps(image)
        found.append(done if isinstance(done, torch.Tensor) else v2.functional.pil_to_tensor(done))
    return torch.stack(found)


@pytest.mark.filterwarnings("ignore:.*not a JPEG")
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos", "box", "nearest", "nearest-exact"])
def test_the_same_bytes_as_torchvision(shard, mode):
    loader = exact(shard, interpolation=mode)
    (batch,) = loader
    assert torch.equal(batch.image, theirs(loader, mode=mode))
    assert batch.image.is_contiguous(memory_format=torch.channels_last)
    (fast,) = exact(shard, interpolation=mode, fidelity="fast")
    assert not torch.equal(fast.image, batch.image)


@pytest.mark.parametrize("later", [RandomResizedCrop(56), CenterCrop(56), tarpeg.LetterBox(56)])
def test_a_later_crop_of_another_kind_is_decoded(shard_of, later):
    path = shard_of(*(sample(n, jpeg("420", 97, 71 + n, seed=n)) for n in range(6)))
    for first, second in ((CROP, later), (later, CROP)):
        for epoch, alone in enumerate((first, second)):
            loaders = [exact(path, each) for each in (Progressive(first, {1: second}), alone)]
            for loader in loaders:
                loader.sampler.set_epoch(epoch)
            (images,), (expected,) = ([batch.image for batch in loader] for loader in loaders)
            assert torch.equal(images, expected)


def test_masks_of_a_later_crop_are_refused_as_of_the_first(shard_of):
    path = shard_of([*sample(0), ("k0000.png", picture("PNG"))])
    split = Split(path, Progressive(CenterCrop(56), {2: CROP}), fidelity="exact", targets=tarpeg.Masks("png"))
    with pytest.raises(ValueError, match="resizes whole images"):
        tarpeg.ShardDataModule(split)
    with pytest.raises(ValueError, match="depends on the boxes"):
        Split(path, Progressive(CenterCrop(56), {2: tarpeg.RandomIoUCrop(56)}))


def test_only_whole_images_are_decoded(shard_of, monkeypatch):
    path = shard_of(*(sample(n, jpeg("420", *size, seed=n)) for n, size in enumerate(SIZES)))
    calls = []
    whole = fetch.decode_batch
    monkeypatch.setattr(fetch, "decode_batch", lambda *a, **k: calls.append("crops") or whole(*a, **k))
    (batch,) = exact(path)
    assert len(batch.image) == len(SIZES) and not calls
    list(exact(path, fidelity="fast"))
    assert calls


@pytest.mark.filterwarnings("ignore:.*not a JPEG")
def test_crops_that_are_larger_than_the_resized_image_are_padded(shard):
    crop = CenterCrop((50, 140), shorter=64)
    loader = exact(shard, crop)
    (batch,) = loader
    assert torch.equal(batch.image, theirs(loader, size=(50, 140)))


@pytest.mark.filterwarnings("ignore:.*not a JPEG")
@pytest.mark.parametrize("runner", [{"threads": 0}, {"threads": 2}, {"workers": 1}], ids=str)
def test_views_flips_and_normalised_results(shard, runner):
    crops = [CROP, RandomResizedCrop(56), CenterCrop(30, shorter=31)]
    (batch,) = exact(shard, crops, **runner)
    (alone,) = exact(shard)
    assert torch.equal(batch.image[0][0], alone.image)
    (mirrored,) = exact(shard, flip=1.0, **runner)
    assert torch.equal(mirrored.image.flip(-1), alone.image)
    (grown,) = exact(shard, Progressive(CROP, {0: 48}))
    assert torch.equal(grown.image, theirs(exact(shard), size=48))
    pixels = tarpeg.transforms.pixels.PixelFormat((0.5,) * 3, (0.25,) * 3, torch.float32)
    (floats,) = exact(shard, pixels=pixels, **runner)
    assert torch.equal(floats.image, tarpeg.Augment([0.5] * 3, [0.25] * 3)(alone.image))


class Corners:
    """The corners of torchvision's crop, in pixels of the source."""

    def read(self, source, ids):
        found = []
        for height, width in source.sizes(ids).tolist():
            short = min(height, width)
            high, wide = 64 if height <= width else int(64 * height / short), 64
            wide = wide if height > width else int(64 * width / short)
            top, left = round((high - 56) / 2), round((wide - 56) / 2)
            x, y = width / wide, height / high
            found.append([[left * x, top * y], [(left + 56) * x, (top + 56) * y]])
        return found

    def move(self, value, view):
        return view.points(value)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_targets_follow(shard_of, flip):
    path = shard_of(*(sample(n, jpeg("420", *size, seed=n)) for n, size in enumerate(SIZES)))
    (batch,) = exact(path, flip=flip, targets=Corners())
    wanted = [[56, 0], [0, 56]] if flip else [[0, 0], [56, 56]]
    for points in batch.targets:
        np.testing.assert_allclose(points, wanted, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*not a JPEG")
@pytest.mark.parametrize("size", [(375, 500), (333, 500), (50, 37), (186, 60), (61, 400)])
@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_end_where_torchvisions_do(size, flip):
    height, width = size
    given = [[0, 0, width, height], [width / 7, height / 3, width / 2, height / 9], [1, 1, 30, 30]]
    boxes = tv_tensors.BoundingBoxes(given, format="XYWH", canvas_size=size, dtype=torch.float64)
    steps = [v2.ConvertBoundingBoxFormat("XYXY"), v2.Resize(64), v2.CenterCrop(56)]
    steps += [v2.RandomHorizontalFlip(flip), v2.SanitizeBoundingBoxes(labels_getter=None)]
    members = objects(*map(tuple, given)) | {"jpg": jpeg("420", *size)}
    split = Split(Scenes({0: members}, count=1), CROP, fidelity="exact", flip=flip, targets=FOUND)
    (batch,) = load(None, split=split, workers=0, threads=0)
    torch.testing.assert_close(
        batch.targets[0]["boxes"].double(), v2.Compose(steps)(boxes), atol=1e-4, rtol=0, check_stride=False
    )


def test_masks_would_be_cropped_first():
    split = Split(Scenes(), CROP, fidelity="exact", targets=[FOUND, tarpeg.Masks("png")])
    with pytest.raises(ValueError, match=r"Masks.*CenterCrop.*fidelity='fast'"):
        load(None, split=split)


def test_a_substitute_and_an_image_that_would_be_too_large(shard_of):
    long = jpeg("420", 4, 3000)
    path = shard_of(sample(0, jpeg("420", 90, 80)), sample(1, b"nothing"), sample(2, long))
    with pytest.warns(UserWarning, match="takes its place") as warned:
        (batch,) = exact(path, max_pixels=1 << 20, max_bad=1.0)
    assert batch.key == ["k0000"] * 3 and torch.equal(batch.image[0], batch.image[2])
    assert any("'k0002': image is TOO_LARGE" in str(each.message) for each in warned)

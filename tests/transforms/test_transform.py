"""A user's transform: what is done natively, what in Python, and the same bytes in any process."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import albumentations
import cv2
import numpy as np
import pytest
import tarpeg
import torch
from albumentations.pytorch import ToTensorV2
from helpers import loaders, reference
from helpers.loaders import digest
from helpers.pictures import MEAN, STD, jpeg, picture
from helpers.small_tars import sample
from hydra.utils import instantiate
from omegaconf import OmegaConf
from PIL import Image
from tarpeg import CenterCrop, RandomCrop, RandomResizedCrop, ShardDataModule, Split, Whole
from tarpeg.diagnostics.advice import measure_costs
from tarpeg.ops.decode import decode_batch
from tarpeg.sampling.sampler import Request
from tarpeg.transforms.pipeline import Uncropped
from tarpeg.transforms.pixels import PixelFormat
from tarpeg.transforms.plan import _policy_of
from tarpeg.transforms.results import TransformError
from torch import nn
from torchvision.transforms import InterpolationMode, functional, transforms as v1, v2

NORMAL = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
FLOAT = PixelFormat(tuple(MEAN), tuple(STD), torch.float32)


def load(source, transform, **options):
    """A loader of batches of 4 in the order of the shards, by default without workers."""
    names = {"shuffle", "workers", "threads", "batch_size", "on_error"} & options.keys()
    config = {name: options.pop(name) for name in names}
    split = Split(source, transform=transform, **options)
    return loaders.load(source, split=split, **{"shuffle": False, "workers": 0, **config})


def compose(*steps):
    return v2.Compose(list(steps))


def images_of(loader):
    """All images of the loader's next epoch, [n, ...]."""
    return torch.cat([batch.image for batch in loader])


CROP = [v2.RandomResizedCrop(32), v2.RandomHorizontalFlip()]
BICUBIC = InterpolationMode.BICUBIC
NATIVE = {
    "v2": [v2.ToImage(), *CROP, *NORMAL, v2.ToPureTensor()],
    "flip first": [v2.RandomHorizontalFlip(), v2.RandomResizedCrop(32), *NORMAL],
    "float first": [v2.PILToTensor(), NORMAL[0], *CROP, NORMAL[1]],
    "v1": [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
    "nested": [v2.Compose(CROP), nn.Sequential(*NORMAL)],
    "levels": [
        *CROP,
        v2.ToDtype(torch.float32),
        v2.Normalize([255 * mean for mean in MEAN], [255 * std for std in STD]),
    ],
}


@pytest.mark.parametrize("name", NATIVE)
def test_what_the_decoder_does_equals_crop_and_flip(photos, name):
    given = load(photos, compose(*NATIVE[name]))
    assert not given.split.runs_python and given.split.is_decoded_only
    images = images_of(given)
    plain = images_of(loaders.load(photos, RandomResizedCrop(32), shuffle=False, workers=0, pixels=FLOAT))
    assert torch.allclose(images, plain, atol=1e-6) if name == "levels" else torch.equal(images, plain)
    assert "Python" not in str(given.split.plan())


@pytest.mark.parametrize(
    ("steps", "crop", "dtype"),
    [
        ([v2.Resize((24, 40))], Whole((24, 40)), torch.uint8),
        ([v2.RandomCrop(32), v2.ToDtype(torch.bfloat16, scale=True)], RandomCrop(32), torch.bfloat16),
        ([v2.CenterCrop([48]), v2.ConvertImageDtype(torch.float16)], CenterCrop(48), torch.float16),
    ],
)
def test_other_crops(photos, steps, crop, dtype):
    pixels = PixelFormat((0.0,) * 3, (1.0,) * 3, dtype) if dtype != torch.uint8 else PixelFormat()
    plain = loaders.load(photos, crop, shuffle=False, workers=0, flip=0.0, pixels=pixels)
    images = images_of(load(photos, compose(*steps)))
    assert images.dtype == dtype and torch.equal(images, images_of(plain))


def test_normalize_with_one_number(photos):
    steps = v1.Compose([v1.CenterCrop(32), v1.ToTensor(), v1.Normalize(0.5, 0.25)])
    pixels = PixelFormat((0.5,) * 3, (0.25,) * 3, torch.float32)
    plain = loaders.load(photos, CenterCrop(32), shuffle=False, workers=0, flip=0.0, pixels=pixels)
    assert torch.equal(images_of(load(photos, steps)), images_of(plain))


METHODS = [
    ({}, ("bilinear", True)),
    ({"interpolation": InterpolationMode.BICUBIC}, ("bicubic", True)),
    ({"interpolation": "bicubic", "antialias": False}, ("bicubic", False)),
    ({"antialias": False}, ("bilinear", False)),
    ({"antialias": None}, ("bilinear", False)),
    ({"interpolation": 1}, ("lanczos", True)),
    ({"interpolation": InterpolationMode.NEAREST}, ("nearest", True)),
    ({"interpolation": "nearest-exact"}, ("nearest-exact", True)),
]


def resized_by_torchvision(image, box, interpolation=InterpolationMode.BILINEAR, **options):
    """To 48x48. torchvision 0.26 has no strings here, and Lanczos for PIL images only."""
    mode = InterpolationMode(interpolation) if isinstance(interpolation, str) else interpolation
    try:
        return v2.functional.resized_crop(image, *box, [48, 48], mode, **options)
    except NotImplementedError:
        picture = v2.functional.to_pil_image(image)
        return v2.functional.pil_to_tensor(
            v2.functional.resized_crop(picture, *box, [48, 48], mode, **options)
        )


@pytest.mark.parametrize(("settings", "method"), METHODS, ids=str)
def test_the_pixels_are_torchvisions(photos, settings, method):
    loader = load(photos, v2.RandomResizedCrop(48, **settings), fidelity="exact")
    (pipeline,) = loader.split.pipelines
    assert loader.split.is_decoded_only and (pipeline.interpolation, pipeline.antialias) == method
    images, ids = images_of(loader), np.arange(23)
    sizes = np.array([reference.decode(file).shape[1:] for file in loader.fetcher.shards.images(ids)])
    (view,) = loader.fetcher.draw_views(Request(0, ids), sizes.astype(np.int32))
    for image, file, box in zip(images, loader.fetcher.shards.images(ids), view.boxes.tolist(), strict=True):
        wanted = resized_by_torchvision(reference.decode(file), box, **settings)
        difference = (image.int() - wanted.int()).abs().float()
        is_linear = method[0] not in ("bicubic", "lanczos")  # tests/ops compares these pixel by pixel
        assert difference.max() <= 1 if is_linear else difference.mean() <= 0.3


def test_a_list_that_takes_pil_images_resizes_as_pillow(photos):
    # Pillow always antialiases, and its nearest is the sample under the centre.
    for settings, wanted in (({"antialias": False}, "bilinear"), ({"interpolation": 0}, "nearest-exact")):
        given = load(photos, compose(v2.RandomResizedCrop(32, **settings), v2.ToImage()))
        plain = loaders.load(photos, flip=0.0, shuffle=False, workers=0, interpolation=wanted)
        assert torch.equal(images_of(given), images_of(plain))


PYTHON = {
    "policy": compose(v2.ToImage(), *CROP, v2.RandAugment(), *NORMAL, v2.ToPureTensor()),
    "erasing": compose(*CROP, *NORMAL, v2.RandomErasing(1.0)),
    "v1": v1.Compose([*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
    "pil": compose(*CROP, v2.ToPILImage(), v1.Lambda(lambda image: image.rotate(9)), v1.ToTensor()),
    "padding": compose(v2.RandomCrop(40, padding=4, pad_if_needed=True), v2.RandomHorizontalFlip()),
    "resize": compose(v2.ToImage(), v2.Resize(40), v2.RandomCrop(32), *NORMAL),
    "albumentations": albumentations.Compose(
        [
            albumentations.RandomResizedCrop((32, 24)),
            albumentations.HorizontalFlip(),
            albumentations.GaussNoise(p=0.7),
            albumentations.Normalize(),
            ToTensorV2(),
        ]
    ),
    "one of albumentations": compose(*CROP, albumentations.HueSaturationValue(p=0.6), v2.ConvertImageDtype()),
    "own module": compose(*CROP, nn.Dropout(0.3).train(), nn.AvgPool2d(2)),
    "own policy": compose(v2.RandomResizedCrop(32), tarpeg.RandAugment(), v2.RandomVerticalFlip(), *NORMAL),
    "own policy alone": compose(v2.RandomResizedCrop(32), tarpeg.TrivialAugmentWide(), *NORMAL),
    "small": compose(v2.CenterCrop(80), v2.RandomHorizontalFlip(), *NORMAL),
    "functions": lambda image: (image[0, :30, :40] ^ int(random.random() * 255)).float(),
    "reduction": compose(v2.RandomResizedCrop(224), lambda image: image.float() - image.float().mean()),
    "views": [compose(*CROP, *NORMAL), compose(*CROP, v2.RandomGrayscale(0.5), *NORMAL)],
}
QUICK = {"policy", "albumentations", "small", "functions", "views"}
PYTHON["own module"].transforms.insert(2, v2.ToDtype(torch.float32, scale=True))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in PYTHON]
)
def test_the_same_bytes_for_any_number_of_workers(photos, name):
    settings = [{"workers": 2, "shuffle": True}, {"workers": 0, "threads": 2, "shuffle": True}]
    digests = {digest(load(photos, PYTHON[name], **each)) for each in settings}
    assert len(digests) == 1
    first, second = (
        load(photos, PYTHON[name], workers=1, shuffle=True),
        load(photos, PYTHON[name], shuffle=True),
    )
    epochs = [list(first), list(first)]
    assert digest(epochs[0]) in digests and digest(epochs[1]) not in digests
    second.load_state_dict({**first.state_dict(), "epoch": 1, "batches": 3})
    assert digest(second) == digest(epochs[1][3:]), "a resumed epoch"
    first.close()


def test_steps_run_on_one_thread_of_torch(photos):
    """Sums of more than 32768 floats depend on the number of threads."""
    seen = []
    steps = compose(*CROP, lambda image: (seen.append(torch.get_num_threads()), image)[1])
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 2)
    try:
        images_of(load(photos, steps))
        with pytest.raises(TransformError):
            images_of(load(photos, compose(*CROP, failing)))
        assert "not measured" in str(Split("x", transform=compose(*CROP, sometimes_failing)).plan())
        assert set(seen) == {1} and torch.get_num_threads() == threads + 2
    finally:
        torch.set_num_threads(threads)


def test_loaders_of_several_threads_do_not_mix_their_generators(photos):
    def slow(image):  # a draw, then other threads, then a draw
        first = random.random()
        time.sleep(0.002)
        return (image * 0 + 1).float() * (first + random.random())

    wanted = images_of(load(photos, compose(*CROP, slow)))
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(lambda _: images_of(load(photos, compose(*CROP, slow))), range(2))
        assert all(torch.equal(images, wanted) for images in found)


def reproduced(steps, image, seed):
    torch.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
    return compose(*steps)(image)


def test_steps_in_python_are_torchvisions_own(photos):
    seeds = []
    steps = [v2.RandAugment(), v2.RandomPerspective(), v2.ColorJitter(0.3)]
    images = images_of(
        load(photos, compose(*CROP, lambda x: (seeds.append(torch.initial_seed()), x)[1], *steps))
    )
    crops = images_of(load(photos, compose(*CROP)))
    assert len(set(seeds[-23:])) == 23, "one seed per sample"
    for image, crop, seed in zip(images, crops, seeds[-23:], strict=True):
        assert torch.equal(image, reproduced(steps, crop, seed))


@pytest.mark.parametrize("first", [CROP, [*CROP, NORMAL[0]], []], ids=str)
def test_steps_in_python_get_planes_as_from_torchvisions_decoder(photos, first):
    seen = []
    steps = compose(v2.Resize((24, 24)), v2.GaussianBlur(5, 1.0), v2.RandomAdjustSharpness(2, p=1))
    images = images_of(load(photos, compose(*first, lambda x: (seen.append(x), x)[1], steps)))
    assert all(image.is_contiguous() for image in seen)
    assert images.is_contiguous(memory_format=torch.channels_last)
    for image, given in zip(images, seen[-23:], strict=True):
        expected = steps(given.movedim(0, -1).contiguous().movedim(-1, 0))
        assert torch.equal(image, expected) if image.dtype == torch.uint8 else torch.allclose(image, expected)


def test_the_generators_of_this_process_go_on(photos):
    def drawn():
        return torch.rand(1).item(), np.random.random(), random.random()

    loader = iter(load(photos, compose(*CROP, v2.RandAugment(), lambda x: x + int(random.random() * 0))))
    next(loader)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    before = drawn()
    torch.set_rng_state(states[0]), np.random.set_state(states[1]), random.setstate(states[2])
    next(loader)
    assert drawn() == before


def test_the_default_device_does_not_matter(photos):
    wanted = images_of(load(photos, PYTHON["policy"]))
    loader = load(photos, PYTHON["policy"])
    with torch.device("meta"):
        assert torch.equal(images_of(loader), wanted)


def test_whole_images_are_resized_as_by_torchvision(photos):
    steps = compose(v2.Resize(50), v2.FiveCrop(20), lambda crops: torch.stack(crops))
    loader = load(photos, steps, fidelity="exact")
    images = images_of(loader)
    assert images.shape == (23, 5, 3, 20, 20)
    for image, file in zip(images, loader.fetcher.shards.images(np.arange(23)), strict=True):
        assert (image.int() - steps(reference.decode(file)).int()).abs().max() <= 1


def test_crops_that_do_not_fit_are_torchvisions(photos):
    loader = load(photos, compose(v2.CenterCrop(90), *NORMAL))  # two of three photographs are smaller
    for image, file in zip(images_of(loader), loader.fetcher.shards.images(np.arange(23)), strict=True):
        wanted = compose(v2.CenterCrop(90), *NORMAL)(reference.decode(file))
        assert (image - wanted).abs().max() <= 1.01 / 255 / min(STD)
    assert loader.split.is_decoded_only
    gray = load(photos, compose(v2.CenterCrop(90), tarpeg.Grayscale(1.0)))
    for image, file in zip(images_of(gray), gray.fetcher.shards.images(np.arange(23)), strict=True):
        wanted = compose(v2.CenterCrop(90), v2.Grayscale(3))(reference.decode(file))
        assert (image.int() - wanted.int()).abs().max() <= 1
    with pytest.raises(TransformError, match=r"key 'k0000': transform= .*RandomCrop"):
        list(load(photos, v2.RandomCrop(90)))


def test_small_images_that_are_damaged_outside_the_crop(shard_of):
    whole = jpeg("420", 400, 64)
    damaged = whole[:-500] + bytes(20) + whole[-480:]
    path = shard_of(*(sample(n, damaged if n == 1 else whole) for n in range(4)))
    plain = [batch.key for batch in loaders.load(path, CenterCrop(60), shuffle=False, workers=0, flip=0.0)]
    assert "k0001" in plain[0], "its middle can be decoded"
    for steps in ([], [tarpeg.RandAugment()], [v2.RandAugment()]):
        given = load(path, compose(v2.CenterCrop(100), *steps))
        with pytest.warns(UserWarning, match="'k0001': .*CORRUPT.*its place"):
            assert "k0001" not in next(iter(given)).key
        with pytest.raises(tarpeg.DecodeError, match="'k0001': image is CORRUPT"):
            list(load(path, compose(v2.CenterCrop(100), *steps), on_error="raise"))


def test_resize_and_center_crop(shard_of):
    """torchvision's crop of the resized image, not tarpeg's box of whole pixels of the source."""
    steps = compose(v2.Resize(64), v2.CenterCrop(56))
    path = shard_of(*(sample(n, jpeg("420", 150, 200 - n, seed=n)) for n in range(4)))
    fast, exact = (load(path, steps, fidelity=fidelity) for fidelity in ("fast", "exact"))
    files = exact.fetcher.shards.images(np.arange(4))
    for near, image, file in zip(images_of(fast), images_of(exact), files, strict=True):
        assert (image.int() - steps(reference.decode(file)).int()).abs().max() <= 1
        height, width = reference.decode(file).shape[1:]
        size = Uncropped(64).target(height, width)
        whole, _ = decode_batch([file], torch.tensor([[0, 0, height, width]], dtype=torch.int32), size)
        assert torch.equal(near, v2.CenterCrop(56)(whole[0])), "the same box at the other fidelity"
    images = images_of(fast)
    for before in (v2.ToDtype(torch.uint8, scale=True), v1.ToTensor()):
        given = images_of(load(path, compose(v2.ToImage(), before, steps)))
        assert torch.equal(given, images if given.dtype == torch.uint8 else images.float() / 255)
    plan = str(fast.split.plan(measure=False))
    assert "whole image" in plan and "crop=tarpeg.CenterCrop((56, 56), shorter=64) decodes less" in plan


def test_other_formats_and_broken_images(shard_of):
    samples = [sample(0), sample(1, picture("PNG"), "png"), sample(2, b"nonsense"), sample(3)]
    for transform in (PYTHON["policy"], PYTHON["resize"], PYTHON["small"]):
        with pytest.warns(UserWarning) as warned:
            (batch,) = load(shard_of(*samples), transform, batch_size=4)
        texts = sorted(str(each.message) for each in warned)
        assert any("'k0001' is not a JPEG" in text for text in texts)
        assert any("NOT_AN_IMAGE" in text and "takes its place" in text for text in texts)
        assert batch.key[2] in ("k0000", "k0001", "k0003") and (batch.image[2].std() > 0.1)


def test_the_cost_of_an_image_is_measured_with_its_transform(photos):
    for name in ("resize", "policy", "small"):
        assert measure_costs(load(photos, PYTHON[name]).fetcher, 0, 0.01).decode > 0


def test_streams(shard_of):
    path = str(shard_of(*(sample(number) for number in range(6))))
    for name in ("policy", "resize", "own policy"):
        options = {"streaming": True, "batch_size": 3}
        digests = {digest(load(path, PYTHON[name], workers=workers, **options)) for workers in (0, 1)}
        assert len(digests) == 1


# --- timm


def test_timms_transforms_work_as_they_are(photos):
    create_transform = pytest.importorskip("timm.data").create_transform
    settings = {"mean": MEAN, "std": STD, "interpolation": "bicubic"}
    crop = v2.RandomResizedCrop(32, interpolation=3)
    for given, wanted in (
        (
            create_transform(32, crop_pct=0.8, **settings),
            compose(v2.Resize(40, 3), v2.CenterCrop(32), v2.ToImage(), *NORMAL),
        ),
        (
            create_transform(32, is_training=True, color_jitter=None, **settings),
            compose(crop, CROP[1], v2.ToImage(), *NORMAL),
        ),
    ):
        images = (images_of(load(photos, transform)) for transform in (given, wanted))
        assert torch.allclose(*images, atol=1e-5)
    assert load(photos, given).split.is_decoded_only
    steps = create_transform(32, is_training=True, auto_augment="rand-m9", re_prob=0.5, **settings)
    assert torch.equal(images_of(load(photos, steps)), images_of(load(photos, steps, workers=1)))
    assert re.search(
        r"Python  RandAugment: [\d,]+ us.*tarpeg.TimmRandAugment", str(load(photos, steps).split.plan())
    )


OTHERS = {
    "auto-augment": {"is_training": True, "auto_augment": "original", "interpolation": "random"},
    "augmix": {"is_training": True, "auto_augment": "augmix-m3-w2"},
    "3a": {"is_training": True, "auto_augment": "3a", "vflip": 0.5},
    "jitter": {
        "is_training": True,
        "grayscale_prob": 0.5,
        "gaussian_blur_prob": 0.5,
        "color_jitter_prob": 0.5,
    },
    "ratio": {"is_training": True, "train_crop_mode": "rkrc"},
    "uint8": {"is_training": True, "use_prefetcher": True, "auto_augment": "rand-m5"},
    "border": {"crop_mode": "border"},
    "squash": {"crop_mode": "squash"},
    "oblong": {"input_size": (32, 48)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_others_of_timms_transforms_work_too(photos, name):
    create_transform = pytest.importorskip("timm.data").create_transform
    steps = create_transform(**{"input_size": 32, **OTHERS[name]})
    dtype = torch.uint8 if name == "uint8" else torch.float32
    images = images_of(load(photos, steps))
    assert images.shape[-2] == 32 and images.dtype == dtype
    assert torch.equal(images, images_of(load(photos, steps, workers=1)))


def test_policies_of_timm_give_the_pixels_of_timm(photos):
    policy = pytest.importorskip("timm.data.auto_augment").rand_augment_transform("rand-m9-mstd0.5", {})
    seeds = []
    steps = [lambda image: (seeds.append(torch.initial_seed()), image)[1], policy]
    images, crops = (images_of(load(photos, compose(*CROP, *more))) for more in (steps, []))
    for image, crop, seed in zip(images, crops, seeds[-23:], strict=True):
        wanted = reproduced([v2.ToPILImage(), policy, v2.PILToTensor()], crop, seed)
        assert torch.equal(image, wanted)


# --- errors


def failing(image):
    if image.float().std() > 0:
        raise ArithmeticError("no")


def sometimes_failing(image):
    if random.random() < 0.5:
        raise ArithmeticError("no")
    return image


def quoting(image):
    raise ValueError("an image: " + "0" * 99_999)


def growing(image):
    return image if image[0, 0, 0] % 2 else image[:, :9]


def retyping(image):
    return image if image[0, 0, 0] % 2 else image.float()


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            failing,
            r"k0000': transform= .*failing, step 1 .*, on uint8 \[3, 32, 32\]: Ari",
        ),
        (growing, r"k00\d\d': transform= .*uint8 \[3, .*one shape.*CenterCrop"),
        (retyping, r"returned (float32|uint8) \[3, 32, 32\], and (uint8|float32).*end it with v2.ToDtype"),
        (NORMAL[1], r"Got torch.uint8. Put v2.ToDtype\(torch.float32, scale=True\) before steps that need"),
        (v2.ToPILImage(), r"k0000': transform= .*Image of \(32, 32\): .*tensor"),
        (lambda image: image.long(), r"transform= returned int64.*Convert it with image.to\(torch.uint8\)"),
        (lambda image: image.convert("L"), r"<lambda>.*v2.ToPILImage\(\) before steps that need PIL"),
        (v1.RandomRotation((9, 9), interpolation=BICUBIC), r"with Tensor input. Images are uint8 tens"),
        (lambda image: Image.fromarray(image.numpy()), "Cannot handle this data type.* Images are uint8"),
        (lambda image: cv2.cvtColor(image.numpy(), cv2.COLOR_RGB2HSV), "OpenCV.* Images are uint8"),
        (lambda image: [image, image], r"returned a list: .*one each: transform=\[first, second\]"),
        (v2.FiveCrop(8), r"returned a tuple: .* FiveCrop needs torch.stack"),
        (lambda image: {"image": image}, r"returned a dict: .* Return the image alone"),
        (
            lambda image: image.permute(1, 2, 0).numpy(),
            r"returned a ndarray of .*v2.ToImage.*Images are uint8",
        ),
        (v2.RandomCrop(0), r"uint8 \[3, 0, 0\]: .*size .*\b1\b"),
        (quoting, r"failed in quoting, .{500,600}$"),
        (
            v1.RandomApply([v1.Lambda(lambda i: functional.to_tensor(i))], p=1.0),
            r"v2.ToPILImage\(\) before steps",
        ),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_fails_is_an_error_with_its_sample(photos, step, text, workers):
    loader = load(photos, compose(v2.RandomResizedCrop(32), step), workers=workers)
    with pytest.raises(TransformError, match=text):
        list(loader)
    loader.close()


def test_the_traceback_of_a_transform_that_fails_is_short_and_the_whole_one_in_the_log(photos, caplog):
    with pytest.raises(TransformError) as caught, caplog.at_level("INFO", "tarpeg"):
        list(load(photos, compose(v2.RandomResizedCrop(32), failing)))
    cause = caught.value.__cause__
    assert traceback.extract_tb(cause.__traceback__)[0].name == "failing"
    assert len(traceback.extract_tb(caught.value.__traceback__)) == 2, "this function, and the loader's"
    assert "in run_steps" in caplog.text and "in _results_of" in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, r"crop=None: give crop=RandomResizedCrop\(224\), or transform="),
        ({"transform": "RandAugment"}, "transform='RandAugment' must be an object"),
        ({"transform": v2.RandAugment}, r"is <class .*RandAugment'>: it must .*, an instance, not a class"),
        ({"transform": 3}, "transform= or a step of it is 3: it must be a callable"),
        ({"transform": compose(v2.RandomResizedCrop(8), "flip")}, "transform= or a step of it is 'flip'"),
        ({"transform": []}, r"transform=\[\] is empty"),
        ({"transform": CROP, "views": 3}, "views=3, but transform= has 2 transforms"),
        ({"transform": CROP, "crop": [CenterCrop(8)] * 3}, r"crop= .*\b3 crops, .*transform= .*\b2\b"),
        ({"transform": CROP[0], "channels": 1}, "channels=1 has no transform=.*Grayscale"),
        ({"transform": CROP[0], "flip": 0.5}, "^flip=0.5 belongs to crop="),
        ({"transform": CROP[0], "interpolation": "box"}, "^interpolation='box' belongs to crop="),
        ({"transform": RandomResizedCrop(8)}, r"such as torchvision's v2.Compose\(.*; crops belong in crop="),
        ({"transform": compose(*CROP, v2.MixUp(num_classes=2))}, r"MixUp, which mixes .*Augment\(mix="),
        ({"crop": CenterCrop(8), "interpolation": BICUBIC}, "interpolation=<.*; did you mean 'bicubic'"),
        (
            {"transform": [v2.RandomResizedCrop(8), v2.RandomResizedCrop(8, interpolation="bicubic")]},
            "several kinds of interpolation",
        ),
        ({"transform": [*CROP, NORMAL[0]]}, r"RandomHorizontalFlip\(p=0.5\) would be a view.*v2.Compose\(\["),
    ],
)
def test_wrong_settings(settings, text):
    with pytest.raises(ValueError, match=text):
        Split("x", **settings)


def test_views_of_other_types(photos):
    text = r"transform= return torch.uint8 \[3, 32, 32\] and torch.float32 \[3, 32, 32\].*v2.Compose\(\["
    for step in (lambda image: image.float(), NORMAL[0]):
        with pytest.raises(TransformError, match=text):
            list(load(photos, [compose(*CROP, v2.RandomGrayscale()), compose(*CROP, step)]))


def test_steps_of_albumentations_draw_each_for_itself(photos):
    def flipped(*steps):
        steps = v2.Compose([v2.CenterCrop(8), *steps, v2.ConvertImageDtype()])
        return next(iter(load(photos, steps, batch_size=23))).image

    whole = flipped()
    pair = [albumentations.HorizontalFlip(p=0.5), albumentations.VerticalFlip(p=0.5)]
    forms = [whole, whole.flip(3), whole.flip(2), whole.flip(2, 3)]
    found = [[torch.equal(row, form[i]) for form in forms] for i, row in enumerate(flipped(*pair))]
    assert {row.index(True) for row in found} == {0, 1, 2, 3}


def test_a_generator_of_its_own_is_a_warning(photos):
    own, within = np.random.default_rng(0), albumentations.Compose([albumentations.GaussNoise(p=1.0)])
    for step in (
        lambda image: image + int(own.integers(1, 99)),
        lambda image: torch.from_numpy(within(image=image.permute(1, 2, 0).numpy())["image"]).movedim(2, 0),
    ):
        with pytest.warns(UserWarning, match="generator"):
            list(load(photos, compose(*CROP, step)))


# --- the data module


def module(photos, transform, augment=None):
    split = Split(str(photos), transform=transform)
    return ShardDataModule(split, augment=augment, batch_size=8, workers=0)


def test_uint8_results_go_on_to_augment_and_floats_are_refused(photos):
    augment = tarpeg.Augment(MEAN, STD)
    data = module(photos, compose(*CROP, v2.RandomVerticalFlip()), augment)
    batch = next(iter(data.augmented(data.train_dataloader())))
    assert batch.image.dtype == torch.float32 and batch.image.shape == (8, 3, 32, 32)
    for name in ("policy", "erasing"):
        with pytest.raises(ValueError, match=r"transform= of train .*torch\.float32.*ToDtype"):
            module(photos, PYTHON[name], augment).train_dataloader()
    assert next(iter(module(photos, PYTHON["policy"]).train_dataloader())).image.dtype == torch.float32
    with pytest.raises(ValueError, match=r"transform= of train .*uint8 \[3072\]"):
        module(photos, compose(*CROP, lambda image: image.flatten()), augment).train_dataloader()


def test_random_transforms_in_augment_point_to_the_split(photos):
    with pytest.raises(ValueError, match=re.escape("Split(transform=v2.Compose([...]))")):
        module(photos, CROP[0], compose(*CROP))


def test_a_transform_after_a_crop(photos):
    plain = loaders.load(photos, shuffle=False, workers=0)
    split = Split(str(photos), RandomResizedCrop(32), 0.5, transform=v2.RandomVerticalFlip(1.0))
    both = loaders.load(photos, split=split, shuffle=False, workers=0)
    assert torch.equal(images_of(both), images_of(plain).flip(-2))


# --- plans and configs


def test_the_plan():
    split = Split("x", transform=PYTHON["policy"])
    lines = str(split.plan()).splitlines()
    kinds = [line.split()[0] for line in lines]
    assert kinds == ["native"] * 3 + ["Python"] * 2 + ["native"] * 3
    decoding = (
        r": [\d,]+ us per image; for all that the decoder does, of an ordinary JPEG of at least 500x375; "
    )
    assert len([line for line in lines if re.search(decoding, line)]) == 1
    assert re.search(r"native  To.*: [\d,]+ us per image; one pass over the batch", lines[5])
    assert re.search(
        r"Python  ToImage\(\): [\d,]+ us per image; again, for the type that the steps", lines[3]
    )
    assert re.search(r"Python  RandAugment\(.*: [\d,]+ us per image; tarpeg.RandAugment, in trans", lines[4])
    assert "us per image" not in str(split.plan(measure=False))
    assert "if the steps before return uint8 [3, H, W]" in str(split.plan(measure=False)).splitlines()[-1]
    blur = v2.RandomApply([v2.GaussianBlur(3)], p=0.5)
    assert "tarpeg.GaussianBlur" in str(Split("x", transform=compose(*CROP, blur)).plan(measure=False))
    for last in (v2.ToPureTensor(), v2.PILToTensor(), v2.ToDtype(torch.uint8)):  # not a pass over the batch
        plan = str(Split("x", transform=compose(CROP[0], v2.RandAugment(), last)).plan())
        assert plan.splitlines()[-1].endswith(": nothing to do"), plan
    policy = Split("x", transform=compose(*CROP, tarpeg.RandAugment(), *NORMAL)).plan().views[0]
    assert [step.us is not None for step in policy] == [True, False, True, True, False]
    floats = Split("x", transform=compose(CROP[0], NORMAL[0], v2.GaussianBlur(3))).plan().views[0]
    assert [step.us is not None for step in floats] == [True] * 3 and "on the batch" in floats[1].note
    levels = compose(CROP[0], v2.ToDtype(torch.uint8), NORMAL[0], v2.GaussianBlur(3))
    notes = [step.note for step in Split("x", transform=levels).plan(measure=False).views[0]]
    assert notes[1:3] == ["nothing to do", "on the batch, in one pass"]
    views = Split("x", transform=[PYTHON["policy"], compose(*CROP), compose(*CROP)], views=3).plan()
    assert [line for line in str(views).splitlines() if line[0] == "v"] == ["view 0", "views 1, 2"]
    assert str(Split("x", RandomResizedCrop(8), 0.5).plan()).count("native") == 2
    fixed = Split(
        "x", transform=compose(nn.Flatten(0), v2.LinearTransformation(torch.eye(12), torch.ones(12)))
    )
    lines = str(fixed.plan()).splitlines()
    assert "not measured: a synthetic image: transform= failed in LinearTransf" in lines[1]
    assert "the times below are" not in lines[0] and lines[2].endswith("): not measured")
    whole = Split("x", transform=compose(v2.RandomRotation(9), CROP[0], *NORMAL, v2.RandomErasing()))
    lines = str(whole.plan()).splitlines()
    assert "the times below are of 500x375 pixels, and grow with their number" in lines[0]
    assert "tarpeg.Augment(erase=tarpeg.Erase(...)) is native" in lines[-1]
    assert "the times below are" not in str(whole.plan(measure=False))


@pytest.mark.parametrize(
    ("step", "policy"),
    [
        (
            v2.RandAugment(3, 5, interpolation=InterpolationMode.BILINEAR),
            tarpeg.RandAugment(3, 5, 31, "bilinear"),
        ),
        (v2.AutoAugment(v2.AutoAugmentPolicy.SVHN), tarpeg.AutoAugment("svhn")),
        (v2.AugMix(severity=2), tarpeg.AugMix(2)),
        (v2.RandomApply([v2.GaussianBlur(5, 0.5)], p=0.25), tarpeg.GaussianBlur(5, 0.5, 0.25)),
        (v1.ColorJitter(0.25, hue=0.125), tarpeg.ColorJitter(0.25, hue=0.125)),
        (v2.RandomApply([v1.RandomGrayscale(0.5)], p=0.5), tarpeg.Grayscale(0.25)),
        (v2.RandomSolarize(99, p=0.5), tarpeg.Solarize(99, 0.5)),
        (v2.RandAugment(interpolation=BICUBIC), None),
        (v2.RandomApply([v2.TrivialAugmentWide()]), None),
        (v2.GaussianBlur((3, 5)), None),
    ],
)
def test_a_plan_measures_the_policy_with_the_arguments_of_the_step(step, policy):
    assert _policy_of(step) == policy
    note = Split("x", transform=compose(*CROP, step)).plan().views[0][-1].note
    name = type(policy).__name__
    assert (
        re.fullmatch(rf"tarpeg.{name}, .* takes about [\d,]+ us", note) if policy else "tarpeg." not in note
    )


def test_hydra(photos):
    of = "torchvision.transforms.v2"
    config = OmegaConf.create(
        {
            "_target_": "tarpeg.Split",
            "_convert_": "all",
            "shards": str(photos),
            "transform": {
                "_target_": f"{of}.Compose",
                "transforms": [
                    {"_target_": f"{of}.RandomResizedCrop", "size": 32, "interpolation": "bicubic"},
                    {"_target_": f"{of}.RandAugment"},
                    {
                        "_target_": f"{of}.ToDtype",
                        "dtype": {"_target_": "hydra.utils.get_object", "path": "torch.float32"},
                        "scale": True,
                    },
                ],
            },
        }
    )
    split = instantiate(config)
    assert split.pipelines[0].interpolation == "bicubic" and split.runs_python
    assert next(iter(loaders.load(photos, split=split, workers=0))).image.dtype == torch.float32


def test_a_plan_measures_steps_that_are_warm():
    seen = set()

    def slow_at_first(image):
        number = int(torch.randint(1 << 40, ()))
        if number not in seen:
            seen.add(number)
            begin = time.thread_time()
            while time.thread_time() - begin < 0.01:
                pass
        return image

    plan = Split("a", CenterCrop(8), transform=slow_at_first).plan()
    (step,) = (each for each in plan.views[0] if not each.is_native)
    assert step.us < 2000


class Forks:
    """A function of a user's that forks this process in one of its calls; the child returns, or exits."""

    def __init__(self, call, exits):
        self.call, self.exits, self.calls, self.parent = call, exits, 0, os.getpid()

    def __call__(self):
        self.calls += 1
        if self.calls == self.call and os.getpid() == self.parent:
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                signal.alarm(3)
                sys.exit() if self.exits else None

    @contextlib.contextmanager
    def error(self):
        try:
            with pytest.raises(RuntimeError, match=r"os\.fork\(\)"):
                yield
        finally:
            if os.getpid() != self.parent:
                os._exit(3)  # the child has gone on with this test


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("call", [1, 4, 6])  # the first trial run, the last one, the second sample
def test_a_transform_that_forks_does_not_multiply_the_program(photos, call, exits):
    forks = Forks(call, exits)
    transform = compose(v2.CenterCrop(8), lambda image: forks() or image)
    with forks.error():
        images_of(load(photos, transform))
    assert len(images_of(load(photos, transform))) == len(loaders.ALL)
    forks = Forks(call, exits)
    with forks.error():
        Split(photos, transform=transform).plan()


def test_a_crop_that_forks_does_not_multiply_the_program(photos):
    class Forking(CenterCrop):
        def boxes(self, sizes, draws):
            forks()
            return super().boxes(sizes, draws)

    forks = Forks(2, False)
    with forks.error():
        list(loaders.load(photos, Forking(8), workers=0, threads=0))

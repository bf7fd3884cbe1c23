"""Normalisation and distortion on the device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tarpeg import Affine, Augment, Color, Erase, Mask

# Written down once: these must never change, or trainings could not be repeated.
GOLDEN = {
    "flip": [False, False, True],
    "erase_boxes": [[23, 24, 0, 0], [6, 7, 11, 16], [18, 9, 0, 0]],
    "brightness": [0.853023132991, 0.745947342074, 0.674389397694],
    "hue": [-0.02771724902, -0.047674208115, -0.011622264785],
    "turn": [0.067813348409, -0.039952422888, -0.15815488296],
}


@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_normalises_as_the_formula_says(order):
    images = (
        torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 3, 16, 16).contiguous(memory_format=order)
    )
    mean, std = (0.1, 0.5, 0.9), (0.2, 0.25, 1.0)
    result = Augment(mean, std)(images)
    exact = (images.double() / 255 - torch.tensor(mean).reshape(1, 3, 1, 1)) / torch.tensor(std).reshape(
        1, 3, 1, 1
    )
    assert result.dtype == torch.float32 and result.is_contiguous(memory_format=order)
    assert (result - exact).abs().max() < 1e-5


def test_none_is_zero_to_one():
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 1, 1, 3).expand(1, 3, 1, 3)
    assert torch.allclose(Augment([0, 0, 0], [1, 1, 1])(images)[0, 0, 0], torch.tensor([0.0, 0.2, 1.0]))


def test_it_has_no_weights_and_leaves_no_trace_in_a_checkpoint():
    augment = Augment()
    assert not list(augment.parameters()) and not augment.state_dict()


def test_it_compiles():
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    augment = Augment()
    compiled = torch.compile(augment, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(images), augment(images))


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        ([0.5], [0.2, 0.2, 0.2], r"mean=\[0\.5\] .* must have three numbers"),
        ([0, 0, 0], [1, 1], r"std=\[1, 1\] must have three numbers"),
        ([0, 0, 0], [1, 0, 1], r"std=\[1, 0, 1\] must be positive"),
    ],
)
def test_settings_out_of_range_are_named(mean, std, text):
    with pytest.raises(ValueError, match=text):
        Augment(mean, std)


@pytest.mark.parametrize(
    "images",
    [torch.zeros(1, 3, 4, 4), torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(1, 1, 4, 4).byte()],
)
def test_other_tensors_are_refused(images):
    with pytest.raises(ValueError, match=r"images must be uint8 \[B, 3, H, W\], got torch"):
        Augment()(images)


def random(**settings):
    parts = {"affine": Affine(20), "color": Color(0.4, 0.4, 0.4, 0.1), "erase": Erase(), "mask": Mask(0.1, 4)}
    return Augment(**{**parts, "flip": 0.5, **settings})


def some(count=6, size=24):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)
    return images.contiguous(memory_format=torch.channels_last)


def test_numbers_are_the_samples_own():
    augment, ids = random(), np.array([7, 3, 900, 4])
    settings = {"seed": 5, "epoch": 2}
    numbers = augment.params(ids, (24, 24), **settings)
    assert set(numbers) == {
        *("flip", "matrix", "brightness", "contrast", "saturation", "hue", "erase_boxes", "mask")
    }
    turned = augment.params(ids[::-1], (24, 24), **settings)
    assert all(torch.equal(turned[name].flip(0), numbers[name]) for name in numbers)
    for other in ({"seed": 6}, {"epoch": 3}, {"occurrence": [1, 1, 1, 1]}):
        changed = augment.params(ids, (24, 24), **{**settings, **other})
        assert not torch.equal(changed["matrix"], numbers["matrix"]), other
    twice = augment.params(ids, (24, 24), **settings, views=2)
    assert all(torch.equal(twice[name][:4], numbers[name]) for name in numbers)
    assert not torch.equal(twice["matrix"][4:], numbers["matrix"])
    fewer = random(color=None, flip=0.0).params(ids, (24, 24), **settings)
    assert all(torch.equal(fewer[name], numbers[name]) for name in fewer), "each has draws of its own"


def test_numbers_never_change_from_one_version_to_the_next():
    numbers = random().params([1, 2, 3], (24, 24), seed=3, epoch=4)
    assert numbers["flip"].tolist() == GOLDEN["flip"]
    assert numbers["erase_boxes"][:, 0].tolist() == GOLDEN["erase_boxes"]
    for name in ("brightness", "hue"):
        assert numbers[name].tolist() == pytest.approx(GOLDEN[name], abs=1e-11)
    assert numbers["matrix"][:, 0, 1].tolist() == pytest.approx(GOLDEN["turn"], abs=1e-11)


def test_training_distorts_and_evaluation_does_not():
    images = some()
    augment = random()
    first, second = augment(images), augment(images)
    assert not torch.equal(first, second), "without numbers it counts the images that it sees"
    again = random()
    assert torch.equal(again(images), first) and torch.equal(again(images), second)
    numbers = augment.params(range(6), (24, 24))
    assert torch.equal(augment(images, numbers), first)
    assert torch.equal(augment.eval()(images, numbers), Augment()(images))


def test_ycbcr_is_jpegs():
    images = some()
    result = Augment([0, 0, 0], [1, 1, 1], space="ycbcr").eval()(images)
    pillow = [
        np.asarray(Image.fromarray(image.permute(1, 2, 0).numpy()).convert("YCbCr")) for image in images
    ]
    expected = torch.from_numpy(np.stack(pillow)).permute(0, 3, 1, 2)
    assert (255 * result - expected).abs().max() <= 1


def test_what_is_erased_is_the_mean_to_the_network():
    images, augment = some(), Augment(mask=Mask(1.0, 2))
    assert augment(images).abs().max() < 1e-5
    white = Augment([0, 0, 0], [1, 1, 1], mask=Mask(1.0, 2), fill=255)
    assert torch.equal(white(images), torch.ones(6, 3, 24, 24))


def test_types_and_memory_formats_by_name():
    images = some()
    for name, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16)):
        assert random(dtype=name)(images).dtype == dtype
    assert random(memory_format="contiguous")(images).is_contiguous()
    assert random(memory_format="channels_last")(images.contiguous()).is_contiguous(
        memory_format=torch.channels_last
    )


def test_it_compiles_with_numbers():
    images, augment = some(), random()
    numbers = augment.params(range(6), (24, 24))
    compiled = torch.compile(augment, fullgraph=True, backend="eager")
    assert torch.equal(compiled(images, numbers), augment(images, numbers))


def test_normalisation_alone_works_where_there_are_no_operators():
    images = some()
    for augment in (Augment(), Augment(dtype="float16", memory_format="contiguous")):
        result = augment._normalise_by_torch(images)
        expected = augment(images)
        assert result.dtype == expected.dtype and torch.allclose(
            result, expected, atol=1e-2 if augment.dtype == torch.float16 else 1e-5
        )
        assert result.stride() == expected.stride()
    assert Augment()(torch.empty(2, 3, 4, 4, dtype=torch.uint8, device="meta")).shape == (2, 3, 4, 4)


PRESETS = sorted(path.stem for path in (Path(__file__).parents[2] / "conf" / "augment").glob("*.yaml"))


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_what_a_network_eats(name):
    from hydra.utils import instantiate
    from omegaconf import OmegaConf

    folder = Path(__file__).parents[2] / "conf" / "augment"
    config = OmegaConf.create(
        {"augment": OmegaConf.load(folder / f"{name}.yaml"), "model": {"net": {"num_classes": 10}}}
    )
    augment = instantiate(config.augment)
    images = some(size=32)
    trained, evaluated = augment(images), augment.eval()(images)
    assert trained.dtype == evaluated.dtype == torch.float32 and torch.isfinite(trained).all()
    assert torch.equal(trained, evaluated) == (name in ("none", "imagenet", "mix"))


@pytest.mark.gpu
def test_it_follows_the_images_to_their_device():
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    augment = Augment()
    expected = augment(images)
    assert torch.allclose(augment(images.cuda()).cpu(), expected)

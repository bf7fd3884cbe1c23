"""Augment and Mix: normalisation, distortion and mixing on the images' device."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.pictures import ORDERS, noise
from helpers.reference import normalise
from hydra.utils import instantiate
from omegaconf import OmegaConf
from PIL import Image
from tarpeg import (
    Affine,
    Augment,
    AugMix,
    ColorJitter,
    Erase,
    GaussianBlur,
    Grayscale,
    GridMask,
    Mix,
    RandAugment,
    TrivialAugmentWide,
)
from tarpeg.ops.programs import Op, run_programs
from torchvision.transforms import v2

NO_IMAGES = r"images must be uint8 \[B, 3, H, W\], got torch"
PRESETS = Path(__file__).parents[2] / "conf" / "augment"


def random(**settings):
    parts = {
        "affine": Affine(20),
        "color": ColorJitter(0.4, 0.4, 0.4, 0.1),
        "erase": Erase(),
        "mask": GridMask(0.1, 4),
    }
    return Augment(**{**parts, "flip": 0.5, **settings})


def with_policies(**settings):
    """Four stages of programs: mirrored, gray and blurred; mixed; bilinear; nearest."""
    policy = [Grayscale(0.5), GaussianBlur(5), AugMix(), RandAugment(interpolation="bilinear"), RandAugment()]
    return random(policy=policy, **settings)


@pytest.fixture
def images():
    return noise(6, 3, 24, 24).contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mean, std", [((0.1, 0.5, 0.9), (0.2, 0.25, 1.0)), ([0, 0, 0], [1, 1, 1])])
def test_normalisation_is_exact(order, mean, std):
    images = torch.arange(256, dtype=torch.uint8).repeat(3).reshape(1, 3, 16, 16)
    result = Augment(mean, std)(images.contiguous(memory_format=order))
    assert result.dtype == torch.float32 and result.is_contiguous(memory_format=order)
    assert (result - normalise(images, mean, std)).abs().max() < 1e-5


@pytest.mark.parametrize("augment", [Augment(), random(), with_policies(erase=Erase(pixels=True))])
def test_it_has_neither_weights_nor_state_and_compiles(augment, images):
    assert not list(augment.parameters()) and not augment.state_dict()
    given = (images, augment.params(range(6), (24, 24))) if augment.is_random else (images,)
    compiled = torch.compile(augment, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*given), augment(*given))


@pytest.mark.parametrize("make", [random, with_policies])
def test_compiled_without_params_it_draws_those_of_the_next_samples(images, make):
    plain, other = make(), make()
    compiled = torch.compile(other, backend="eager")
    assert all(torch.equal(compiled(images), plain(images)) for _ in range(3))


def test_compiled_without_params_and_breaks_the_error_has_the_remedy(images):
    torch._dynamo.reset()  # graphs of other tests would be used again
    compiled = torch.compile(random(), fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"augment\.params\(ids"):
        compiled(images)


@pytest.mark.parametrize("space, make", [("rgb", random), ("ycbcr", random), ("rgb", with_policies)])
def test_the_default_device_of_torch_does_not_matter(images, space, make):
    augment = make(space=space)
    expected = augment(images, augment.params(range(6), (24, 24)))
    with torch.device("meta"):
        result = augment(images, augment.params(range(6), (24, 24)))
        assert torch.equal(result, expected) and augment.denormalise(result[0]).device.type == "cpu"
        assert augment._normalise_by_torch(images).device.type == "cpu"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augment([0.5], [0.2, 0.2, 0.2]), r"mean=\[0\.5\] .*"),
        (lambda: Augment([0, 0, 0], [1, 1]), r"std=\[1, 1\]"),
        (
            lambda: Augment([0.5], [0.2], color=ColorJitter(0.4)),
            r"color=Color.* .*mean=\[0\.5\]",
        ),
        (lambda: Augment([0.5], [0.2], policy=RandAugment()), "policy=RandAugment.* .*RGB"),
        (lambda: Augment([0.5], [0.2], space="ycbcr"), "space='ycbcr' .*RGB"),
        (lambda: Augment([0, 0, 0], [1, 0, 1]), r"std=\[1, 0, 1\]"),
        (lambda: Augment(flip=True), "flip=True of Augment"),
        (lambda: Augment(flip=2), r"flip=2 of Augment .*0\.\.1"),
        (lambda: Augment(space="hsv"), r"space='hsv' .*'rgb'.*'ycbcr'"),
        (lambda: Augment(dtype="int8"), r"dtype='int8' .*'float32', 'float16', 'bfloat16'"),
        (lambda: Augment(memory_format="x"), r"memory_format='x' .* 'contiguous', 'channels_last', None"),
        (
            lambda: Augment(policy={"num_ops": 2}),
            r"policy={'num_ops': 2}",
        ),
        (
            lambda: Augment(policy=[Erase()]),
            r"policy=Erase\(.*\)",
        ),
        (
            lambda: Augment(policy=v2.RandAugment()),
            r"policy=RandAugment\(.*\)",
        ),
        (lambda: Augment(policy=RandAugment), r"policy=<class .*RandAugment'>"),
        (lambda: Augment(policy="randaugment"), r"policy='randaugment'"),
        (lambda: Augment(mean=[124, 116, 104]), r"mean=\[124, 116, 104\] .* in 0\.\.1.*255"),
        (lambda: Augment(mean=0.5, std=0.5), r"mean=0\.5 and std=0\.5 must be lists"),
        (lambda: Augment(mix={"classes": 3}), r"mix={'classes': 3} .*tarpeg\.Mix"),
        (lambda: Mix(0), r"classes=0"),
        (lambda: Mix(10, mixup=-1), r"mixup=-1"),
        (lambda: Mix(10, probability=1.5), r"probability=1\.5 of Mix"),
        (lambda: Augment()(torch.zeros(1, 3, 4, 4)), NO_IMAGES),
        (lambda: Augment()(torch.zeros(3, 4, 4).byte()), NO_IMAGES),
        (
            lambda: Augment()(torch.zeros(1, 1, 4, 4).byte()),
            NO_IMAGES + r".*mean=\[0.*\] has 3 of 1 channels",
        ),
        (
            lambda: Augment([0.5], [0.2])(torch.zeros(1, 3, 4, 4).byte()),
            r"\[B, 1, H, W\], got .*\[1, 3, 4, 4\]; mean=\[0\.5\] has 1 of 3 channels",
        ),
    ],
)
def test_settings_out_of_range_and_other_tensors_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_gray_images():
    images = noise(6, 1, 24, 24)
    options = {"flip": 0.5, "affine": Affine(30), "erase": Erase(1.0), "mask": GridMask(0.2, 4)}
    gray, rgb = (Augment([0.4] * n, [0.2] * n, **options) for n in (1, 3))
    params = gray.params(range(6), (24, 24))
    expected = rgb(images.expand(-1, 3, -1, -1), params)[:, :1]
    assert torch.equal(gray(images, params), expected) and gray.eval()(images).shape == images.shape
    assert (gray.denormalise(gray(images)[0]) - images[0]).abs().max() < 1e-3
    result = gray._normalise_by_torch(images)
    assert torch.allclose(result, gray(images), atol=1e-5) and result.shape == images.shape


def test_params_depend_on_the_sample_only():
    augment, ids = random(), np.array([7, 3, 900, 4])
    settings = {"seed": 5, "epoch": 2}
    params = augment.params(ids, (24, 24), **settings)
    assert set(params) == {"ops0", "values0", "matrix", "erase_boxes", "mask"}
    reversed_ = augment.params(ids[::-1], (24, 24), **settings)
    assert all(torch.equal(reversed_[name].flip(0), params[name]) for name in params)
    for other in ({"seed": 6}, {"epoch": 3}, {"occurrence": [1, 1, 1, 1]}):
        changed = augment.params(ids, (24, 24), **{**settings, **other})
        assert not torch.equal(changed["matrix"], params["matrix"]), other
    twice = augment.params(ids, (24, 24), **settings, views=2)
    assert all(torch.equal(twice[name][:4], params[name]) for name in params)
    assert not torch.equal(twice["matrix"][4:], params["matrix"])
    fewer = random(color=None, flip=0.0).params(ids, (24, 24), **settings)
    assert all(torch.equal(fewer[name], params[name]) for name in fewer), "each distortion has its own draws"


@pytest.mark.parametrize("make", [random, with_policies])
def test_training_distorts_and_evaluation_does_not(images, make):
    augment = make()
    first, second = augment(images), augment(images)
    assert not torch.equal(first, second), "without params it counts the images"
    again = make()
    assert torch.equal(again(images), first) and torch.equal(again(images), second)
    params = augment.params(range(6), (24, 24))
    assert torch.equal(augment(images, params), first)
    assert torch.equal(augment.eval()(images, params), Augment()(images))


@pytest.mark.parametrize("order", ORDERS)
def test_policies_run_in_order_on_uint8_before_the_single_pass(order):
    images = noise(5, 3, 33, 40).contiguous(memory_format=order)
    augment, ids = with_policies(), np.array([3, 1, 4, 1, 5])
    params = augment.params(ids, (33, 40), seed=2, epoch=3, views=2)
    assert [len(stage.policies) for stage in augment.stages] == [3, 1, 1, 2] and augment.is_random
    plain = random(color=None).params(ids, (33, 40), seed=2, epoch=3, views=2)
    rest = {name: value for name, value in plain.items() if name != "flip"}
    assert all(torch.equal(params[name], value) for name, value in rest.items()), "their draws stay"
    assert torch.equal((params["ops0"][:, 0, 0] == Op.FLIP), plain["flip"])
    twice = torch.cat([images, images]).contiguous(memory_format=order)
    expected = twice
    for stage, nearest in enumerate((True, False, False, True)):
        arguments = [params.get(f"{name}{stage}") for name in ("ops", "values", "weights")]
        expected = run_programs(expected, *arguments, nearest=nearest)
    assert not torch.equal(expected, twice)
    result = augment(twice, params)
    assert torch.equal(result, random(color=None).transform(expected, rest))
    out = torch.empty_like(result)
    assert augment.transform(twice, params, out) is out and torch.equal(out, result)
    assert torch.equal(pickle.loads(pickle.dumps(augment))(twice, params), result)
    assert not Augment(policy=[]).is_random and Augment(policy=TrivialAugmentWide()).is_random
    assert torch.equal(augment.eval()(twice, params), Augment()(twice))


def test_color_is_the_last_policy(images):
    jitter = ColorJitter(0.4, 0.4, 0.4, 0.1, probability=0.8)
    for before in ([], [AugMix()], [RandAugment(interpolation="bilinear")], [Grayscale(0.5), jitter]):
        named, listed = random(policy=before, color=jitter), random(policy=[*before, jitter], color=None)
        assert torch.equal(named(images), listed(images))


def test_erased_pixels_are_random(images):
    augment = random(erase=Erase(1.0, pixels=True), mask=None)
    params, plain = augment.params(range(6), (24, 24)), random(erase=Erase(1.0)).params(range(6), (24, 24))
    assert torch.equal(params["erase_boxes"], plain["erase_boxes"])
    first, second = (augment(images, {**params, "erase_keys": params["erase_keys"] + n}) for n in (0, 1))
    sides = params["erase_boxes"][:, 0, 2:].long()
    assert ((first != second).any(1).sum((1, 2)) == sides.prod(1)).all()


def test_ycbcr_equals_pillows(images):
    result = Augment([0, 0, 0], [1, 1, 1], space="ycbcr").eval()(images)
    pillow = [Image.fromarray(image.permute(1, 2, 0).numpy()).convert("YCbCr") for image in images]
    expected = torch.from_numpy(np.stack([np.asarray(image) for image in pillow])).permute(0, 3, 1, 2)
    assert (255 * result - expected).abs().max() <= 1


def test_erased_pixels_are_the_mean_or_fill(images):
    assert Augment(mask=GridMask(1.0, 2))(images).abs().max() < 1e-5
    white = Augment([0, 0, 0], [1, 1, 1], mask=GridMask(1.0, 2), fill=255)
    assert torch.equal(white(images), torch.ones(6, 3, 24, 24))


def test_normalisation_alone_works_without_operators(images):
    for augment in (Augment(), Augment(dtype="float16", memory_format="contiguous")):
        result, expected = augment._normalise_by_torch(images), augment(images)
        tolerance = 1e-2 if augment.dtype == torch.float16 else 1e-5
        assert result.dtype == expected.dtype and result.stride() == expected.stride()
        assert torch.allclose(result, expected, atol=tolerance)
    assert Augment()(torch.empty(2, 3, 4, 4, dtype=torch.uint8, device="meta")).shape == (2, 3, 4, 4)


def test_a_graph_for_onnx_has_no_operator_of_ours(images, monkeypatch):
    """Its exporter leaves out, in silence, an operator that fills its argument: the network saw zeros."""
    augment = Augment().eval()
    expected = augment(images)
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    exported = torch.export.export(augment, (images,))
    called = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert "aten.addcmul.default" in called and not any("tarpeg" in name for name in called)
    torch.testing.assert_close(exported.module()(images), expected)
    with pytest.raises(ValueError, match=r"exported to ONNX in eval\(\) and with space='rgb'"):
        Augment(space="ycbcr").eval()(images)


@pytest.mark.parametrize("name", sorted(path.stem for path in PRESETS.glob("*.yaml")))
def test_every_preset_returns_network_input(name, images):
    config = {"augment": OmegaConf.load(PRESETS / f"{name}.yaml"), "model": {"net": {"num_classes": 10}}}
    augment = instantiate(OmegaConf.create(config).augment)
    trained, evaluated = augment(images), augment.eval()(images)
    assert trained.dtype == evaluated.dtype == torch.float32 and torch.isfinite(trained).all()
    assert torch.equal(trained, evaluated) == (name in ("none", "imagenet", "mix"))


@pytest.mark.gpu
def test_policies_and_random_pixels_give_the_bits_of_the_cpu(images):
    augment = with_policies(erase=Erase(1.0, pixels=True))
    params = augment.params(range(6), (24, 24))
    moved = {name: part.cuda() for name, part in params.items()}
    for given in (params, moved):
        assert torch.equal(augment(images.cuda(), given).cpu(), augment(images, params))


@pytest.mark.gpu
def test_it_follows_the_images_to_their_device(images):
    augment = Augment()
    assert torch.allclose(augment(images.cuda()).cpu(), augment(images))


def test_mixing():
    images, labels = torch.rand(6, 3, 8, 8), torch.arange(6) % 3
    before = torch.random.get_rng_state()
    up, soft = Mix(3, mixup=0.4, cutmix=0)(images, labels, (0.0, 0.0, 0.3))
    again, _ = Mix(3, mixup=0.4, cutmix=0)(images, labels, (0.9, 0.7, 0.3))
    assert torch.equal(before, torch.random.get_rng_state()) and torch.equal(up, again)
    share = soft[0, 0].item()
    assert 0 < share < 1 and torch.allclose(up, share * images + (1 - share) * images.roll(1, 0), atol=1e-6)
    assert torch.allclose(soft.sum(1), torch.ones(6)) and soft.dtype == torch.float32
    cut, _ = Mix(3, mixup=0, cutmix=1.0)(images, labels, (0.0, 0.9, 0.6))
    assert ((cut == images) | (cut == images.roll(1, 0))).all() and not torch.equal(cut, images)
    for rare in (Mix(3, probability=0.5), Mix(3, mixup=0, cutmix=0)):
        same, hard = rare(images, labels, (0.6, 0.0, 0.0))
        assert torch.equal(same, images) and torch.equal(hard, torch.nn.functional.one_hot(labels, 3).float())
    kinds = [Mix(3)(images, labels, (0, method, 0.3))[0] for method in (0.2, 0.4, 0.6, 0.8)]
    assert torch.equal(kinds[0], kinds[1]) and torch.equal(kinds[2], kinds[3])
    assert not torch.equal(*kinds[1:3])
    with pytest.raises(ValueError, match=r"labels 0\.\.2 .*classes of Mix"):
        Mix(2)(images, labels, (0, 0, 0))
    with pytest.raises(ValueError, match=r"labels int64 \[B\].*torch\.int64 \[6, 1\]"):
        Mix(3)(images, labels[:, None], (0, 0, 0))
    with pytest.raises(ValueError, match="one view of each image"):
        Mix(3)(images[None], labels, (0, 0, 0))

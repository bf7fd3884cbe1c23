"""augment_batch: equal to its reference and to torchvision v2; parts alone and together; wrong input."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tarpeg
import torch
from helpers import pictures, reference
from helpers.pictures import MEAN, ORDERS, STD, YCBCR, drawn, final_pass, noise, parts
from hypothesis import given, settings, strategies as st
from tarpeg.ops import matrices as mx
from tarpeg.sampling import rng
from torch.overrides import TorchFunctionMode
from torchvision.transforms.v2 import functional

# Half a unit in the last place of the type, relative.
DTYPES = {torch.float32: 0.0, torch.float16: 2**-11, torch.bfloat16: 2**-8}


def error(result: torch.Tensor, images: torch.Tensor, **arguments) -> float:
    """Largest difference from the reference, in values of 0..1 before the division by std."""
    return float((result.double() - reference.augment_batch(images, **arguments)).abs().max())


@pytest.mark.parametrize("name", parts(1, 2, 2))
@pytest.mark.parametrize("order", ORDERS)
def test_each_part_alone_equals_the_reference(name, order):
    for height, width in ((37, 53), (1, 1), (3, 300), (16, 16), (5, 520)):
        images = noise(4, 3, height, width).contiguous(memory_format=order)
        given = {name: parts(4, height, width)[name]}
        result = tarpeg.augment_batch(images, **given)
        assert result.shape == images.shape and result.dtype == torch.float32
        assert result.is_contiguous(memory_format=order) or height * width == 1
        assert error(result, images, **given) < 1e-4


@settings(max_examples=80, deadline=None)
@given(
    *(st.sets(st.sampled_from(sorted(parts(1, 2, 2)))), st.integers(1, 40), st.integers(1, 70)),
    *(st.sampled_from(ORDERS), st.sampled_from(ORDERS), st.integers(0, 10_000)),
)
def test_any_parts_together_equal_the_reference(names, height, width, order, memory_format, seed):
    images = noise(3, 3, height, width, seed=seed).contiguous(memory_format=order)
    drawn_parts = parts(3, height, width, seed)
    given = {name: drawn_parts[name] for name in names} | {"fill": (10, 20, 200)}
    result = tarpeg.augment_batch(images, memory_format=memory_format, **given)
    assert result.is_contiguous(memory_format=memory_format)
    assert error(result, images, **given) < 1e-3
    levels = tarpeg.augment_batch(images, dtype=torch.uint8, **given)
    expected = (reference.augment_batch(images, **given) * 255).clamp(0, 255)
    assert (levels - expected).abs().max() <= 0.75


@pytest.mark.parametrize("order", ORDERS)
def test_boxes_with_keys_become_normal_random_numbers(order):
    images = noise(2, 3, 90, 301).contiguous(memory_format=order)
    boxes = torch.tensor([[[0, 0, 90, 301]], [[7, 11, 50, 280]]], dtype=torch.int32)
    keys = torch.tensor([[5], [2**52 + 1]])
    result = tarpeg.augment_batch(images, erase_boxes=boxes, erase_keys=keys, mean=MEAN, std=STD)
    index = np.arange(90 * 301 * 3, dtype=np.uint64)
    hashes = np.stack([rng._absorb(np.full(1, key, np.uint64), index) for key in keys[:, 0].tolist()])
    sums = torch.from_numpy(hashes.view(np.uint8).reshape(2, 90, 301, 3, 8).sum(-1).astype(int)).double()
    x = (sums - 1020).permute(0, 3, 1, 2) / (8 * 65535 / 12) ** 0.5
    expected = x * (0.98166437 + 5.2188194e-3 * x**2 + 2.5875132e-4 * x**4)
    is_inside = torch.zeros(2, 1, 90, 301, dtype=torch.bool)
    is_inside[0], is_inside[1, :, 7:57, 11:291] = True, True
    plain = tarpeg.augment_batch(images, mean=MEAN, std=STD).double()
    assert (result - torch.where(is_inside, expected, plain)).abs().max() < 1e-5
    values = result[0].double().flatten().sort().values
    share = (torch.arange(len(values)) + 0.5) / len(values)
    assert (torch.special.ndtr(values) - share).abs().max() < 1.95 / len(values) ** 0.5
    assert torch.corrcoef(result[0].flatten(1)).triu(1).abs().max() < 0.02
    for wrong, message in (
        ({"erase_boxes": None}, "erase_keys needs erase_boxes"),
        ({"erase_keys": keys[0]}, r"erase_keys must be int64 \[2, 1\], got torch.int64 \[1\]"),
        ({"dtype": torch.uint8}, "erase_keys needs a floating-point dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            tarpeg.augment_batch(images, **{"erase_boxes": boxes, "erase_keys": keys, **wrong})


@pytest.mark.parametrize("size", [(37, 53), (1, 1), (5, 600), (2, 7), (16, 16)])
def test_gray_is_a_channel_of_rgb(size):
    gray, given = noise(3, 1, *size), parts(3, *size)
    for names in ((), ("flip",), ("matrix",), ("flip", "matrix", "erase_boxes", "mask")):
        options = {name: given[name] for name in names}
        for dtype, order in product((torch.uint8, *DTYPES), ORDERS):
            numbers = (
                [{}, {}] if dtype == torch.uint8 else [{"mean": [0.4] * n, "std": [0.2] * n} for n in (1, 3)]
            )
            one, three = (
                tarpeg.augment_batch(images, dtype=dtype, fill=7, memory_format=order, **options, **number)
                for images, number in zip((gray, gray.expand(-1, 3, -1, -1)), numbers, strict=True)
            )
            assert one.shape == gray.shape and torch.equal(one, three[:, :1]), (names, dtype, order)
    keys = {"erase_boxes": given["erase_boxes"], "erase_keys": torch.arange(6).reshape(3, 2)}
    one, three = (tarpeg.augment_batch(images, **keys) for images in (gray, gray.expand(-1, 3, -1, -1)))
    assert torch.equal(one, three[:, :1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("memory_format", ORDERS)
def test_normalised_in_every_type_and_order(dtype, order, memory_format):
    for height, width in ((9, 31), (64, 40), (2, 7)):
        images = noise(3, 3, height, width).contiguous(memory_format=order)
        given = {"flip": torch.tensor([True, False, True]), "mean": MEAN, "std": STD}
        result = tarpeg.augment_batch(images, dtype=dtype, memory_format=memory_format, **given)
        expected = reference.augment_batch(images, **given)
        assert result.dtype == dtype and result.is_contiguous(memory_format=memory_format)
        assert torch.all((result.double() - expected).abs() <= DTYPES[dtype] * expected.abs() + 2e-6)
        plain = tarpeg.augment_batch(images, memory_format=memory_format, **given)
        assert torch.equal(result, plain.to(dtype)), "rounded once"


def test_each_part_equals_torchvision():
    images = noise(4, 3, 30, 40)
    values, given = images.float() / 255, parts(4, 30, 40)
    for name in ("brightness", "contrast", "saturation", "hue"):
        adjust = getattr(functional, f"adjust_{name}")
        adjusted = [adjust(image, factor) for image, factor in zip(images, given[name].tolist(), strict=True)]
        result = tarpeg.augment_batch(images, dtype=torch.uint8, **{name: given[name]})
        assert torch.equal(result, torch.stack(adjusted)), name
    mirrored = functional.normalize(functional.horizontal_flip(values), list(MEAN), list(STD))
    result = tarpeg.augment_batch(images, flip=True, mean=MEAN, std=STD)
    assert (result - mirrored).abs().max() < 1e-5


def test_crop_mirror_normalize():
    images = noise(3, 3, 20, 30)
    tops, lefts = torch.tensor([0, 3, 10]), torch.tensor([5, 0, 14])
    shifts = mx.translation(-lefts, -tops)
    result = tarpeg.augment_batch(images, size=(10, 16), matrix=shifts, mean=MEAN, std=STD)
    for index, (top, left) in enumerate(zip(tops.tolist(), lefts.tolist(), strict=True)):
        crop = images[index : index + 1, :, top : top + 10, left : left + 16]
        assert torch.equal(result[index : index + 1], tarpeg.augment_batch(crop, mean=MEAN, std=STD))
    flipped = tarpeg.augment_batch(
        images, size=8, matrix=mx.translation(-5, -2), flip=True, dtype=torch.uint8
    )
    assert torch.equal(flipped, images.flip(-1)[:, :, 2:10, 5:13])


def test_one_value_may_serve_all_images_and_neutral_ones_change_nothing():
    images, matrix = noise(3, 3, 9, 11), drawn(1, 9, 11)[0]
    single = {"matrix": matrix, "brightness": 1.5, "flip": True, "colour_matrix": YCBCR}
    each = {"matrix": matrix.expand(3, 2, 3), "brightness": [1.5] * 3, "flip": [True] * 3}
    each["colour_matrix"] = YCBCR.expand(3, 3, 4)
    assert torch.equal(tarpeg.augment_batch(images, **single), tarpeg.augment_batch(images, **each))
    plain = tarpeg.augment_batch(images, mean=MEAN, std=STD)
    neutral = {"brightness": 1.0, "contrast": 1.0, "saturation": 1.0, "hue": 0.0, "flip": False}
    neutral |= {"matrix": mx.identity(), "erase_boxes": torch.zeros(3, 3, 4, dtype=torch.int32)}
    neutral |= {"mask": torch.zeros(3, 3, 3, dtype=torch.bool), "size": (9, 11)}
    assert torch.equal(tarpeg.augment_batch(images, mean=MEAN, std=STD, **neutral), plain)
    assert torch.equal(tarpeg.augment_batch(images, dtype=torch.uint8), images)


def test_empty_batches_and_results():
    assert tarpeg.augment_batch(noise(0, 3, 4, 4), **parts(0, 4, 4)).shape == (0, 3, 4, 4)
    assert tarpeg.augment_batch(noise(2, 3, 4, 4), size=(0, 3), contrast=2.0).shape == (2, 3, 0, 3)
    empty = tarpeg.augment_batch(noise(2, 3, 0, 4), size=3, fill=255, matrix=mx.identity())
    assert empty.shape == (2, 3, 3, 3) and bool((empty == 1).all())


def test_out_is_written_and_returned():
    images, given = noise(3, 3, 20, 30), parts(3, 20, 30)
    for dtype, order in product((*DTYPES, torch.uint8), ORDERS):
        out = torch.full((3, 3, 20, 30), 3, dtype=dtype).contiguous(memory_format=order)
        assert tarpeg.augment_batch(images, dtype=dtype, out=out, **given) is out
        assert torch.equal(out, tarpeg.augment_batch(images, dtype=dtype, **given))


@pytest.mark.sweep
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [224, 217])
def test_large_batches_equal_small_ones(dtype, width):
    """From 16 MB on, results are written past the caches."""
    images, flips = noise(60, 3, 224, width), {"flip": noise(60) > 127}
    options = {"dtype": dtype, "mean": MEAN, "std": STD}
    for order, changes in product(ORDERS, (flips, flips | {"contrast": parts(60, 4, 4)["contrast"]})):
        result = tarpeg.augment_batch(images.contiguous(memory_format=order), **options, **changes)
        for one in (slice(0, 1), slice(31, 32), slice(59, 60)):
            alone = {name: values[one] for name, values in changes.items()}
            assert torch.equal(result[one], tarpeg.augment_batch(images[one], **options, **alone))


ERASE, MASK = torch.zeros(1, 4, dtype=torch.int32), torch.zeros(1, 5, 4, dtype=torch.bool)
OUT = torch.zeros(1, 3, 4, 4)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"images": OUT}, r"images must be uint8 \[B, C, H, W\], got torch.float32"),
        ({"images": noise(1, 4, 4, 4)}, r"images must be RGB, .* got \[1, 4, 4, 4\]"),
        ({"images": noise(1, 1, 4, 4), "hue": 0.1}, r"hue needs RGB images, \[B, 3, H, W\], got \[1, 1, 4"),
        ({"images": noise(1, 1, 4, 4), "fill": (1, 2, 3)}, "fill must be a level of 0 to 255, one for gray"),
        ({"images": noise(1, 1, 4, 4), "mean": MEAN, "std": STD}, "must be one number each: gray"),
        ({"brightness": -1.0}, r"brightness\[0\] must be finite and at least 0, got -1.0"),
        ({"contrast": [float("nan")]}, r"contrast\[0\] must be finite and at least 0, got nan"),
        ({"saturation": float("inf")}, r"saturation\[0\] must be finite"),
        ({"hue": 0.6}, r"hue\[0\] must be from -0.5 to 0.5, got 0.6"),
        ({"hue": [0.1, 0.2]}, r"hue must be one number or \[1\], got \[2\]"),
        ({"flip": torch.zeros(1)}, "flip must be bool"),
        ({"matrix": torch.zeros(3, 3)}, r"matrix must be \[2, 3\] or \[1, 2, 3\], got \[3, 3\]"),
        ({"matrix": torch.zeros(2, 3)}, r"matrix\[0\] must be invertible"),
        ({"matrix": torch.full((1, 2, 3), torch.inf)}, r"matrix\[0\] must be finite"),
        ({"colour_matrix": torch.full((3, 4), torch.nan)}, r"colour_matrix\[0\] must be finite"),
        ({"colour_matrix": torch.zeros(3, 3)}, r"colour_matrix must be \[3, 4\]"),
        ({"erase_boxes": ERASE}, r"erase_boxes must be int32 \[1, n, 4\]"),
        (
            {"erase_boxes": ERASE.new_tensor([[[1, 0, 4, 1]]])},
            r"erase_boxes\[0\] must be \(top, left, height, width\) inside 4 x 4, got \[\[1, 0, 4, 1\]\]",
        ),
        ({"erase_boxes": ERASE.new_tensor([[[-1, 0, 2, 1]]])}, r"erase_boxes\[0\] must be"),
        ({"mask": MASK}, r"mask must be bool \[1, h, w\] with h from 1 to 4"),
        ({"mask": torch.zeros(1, 4, 4)}, "mask must be bool"),
        ({"fill": 256}, "fill must be a level of 0 to 255, or three, got 256"),
        ({"fill": (1, 2)}, "fill must be a level"),
        ({"mean": (1, 2)}, "mean=.* must be three numbers each"),
        ({"mean": (float("nan"), 0, 0)}, "mean=.* must be three"),
        ({"std": (1, 0, 1)}, "std positive"),
        ({"std": (1, float("inf"), 1)}, "std positive"),
        (
            {"dtype": torch.float64},
            "dtype must be torch.uint8, float32, float16 or bfloat16, got torch.float64",
        ),
        ({"dtype": torch.uint8, "mean": MEAN}, "mean and std need a floating-point dtype"),
        ({"size": -1}, "size must be"),
        ({"out": torch.zeros(1, 3, 4, 5)}, r"out must be torch.float32 \[1, 3, 4, 4\] on cpu"),
        ({"out": OUT, "memory_format": torch.channels_last}, "out must be in memory_format"),
    ],
)
def test_errors_contain_the_name_of_the_argument(change, text):
    with pytest.raises(ValueError, match=text):
        tarpeg.augment_batch(**{"images": noise(1, 3, 4, 4), **change})


CONSTANTS = [0.0] * 3 + [1.0] * 3 + [0.0] * 3  # fill, scale, shift
OPERATOR = (
    *(noise(2, 3, 8, 8), torch.rand(2, 19, dtype=torch.float64), 0, torch.zeros(2, 1, 4, dtype=torch.int32)),
    *(torch.zeros(2, 2, 2, dtype=torch.bool), CONSTANTS, False, torch.zeros(2, 3, 8, 8)),
)
"""Valid arguments of the operator."""


def test_unchecked_values_have_a_defined_result():
    """Values on a GPU and inside torch.compile reach the operator unchecked."""
    images = noise(3, 3, 5, 300)
    numbers = torch.full((3, 19), torch.nan, dtype=torch.float64)
    numbers[1] = 1e300
    numbers[2] = -torch.inf
    boxes = torch.tensor([[[-5, -5, 7, 2**31 - 1], [2**31 - 1, 0, 2**31 - 1, 1]]] * 3, dtype=torch.int32)
    constants = [9.0] * 3 + CONSTANTS[3:]
    for bits in range(8):
        out = torch.empty(3, 3, 5, 300, dtype=torch.uint8)
        torch.ops.tarpeg.run_batch(*final_pass(images, numbers, bits, boxes, None, constants, False, out))
        assert bool((out[:, :, :2] == 9).all()), "boxes are clipped"
        if bits == 1:
            assert bool((out == 9).all())


def test_results_of_nan():
    images = torch.tensor([10, 200, 90], dtype=torch.uint8).reshape(1, 3, 1, 1).repeat(1, 1, 4, 9)
    numbers = torch.full((1, 19), torch.nan, dtype=torch.float64)
    for dtype, expected in ((torch.float32, torch.nan), (torch.uint8, 0)):
        out = torch.zeros_like(images, dtype=dtype)
        torch.ops.tarpeg.run_batch(*final_pass(images, numbers, 4, None, None, CONSTANTS, False, out))
        torch.testing.assert_close(out, torch.full_like(out, expected), atol=0, rtol=0, equal_nan=True)


class Copies(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.to and torch.device("cpu") in (*args, (kwargs or {}).get("device")):
            assert not (kwargs or {}).get("non_blocking"), "read before the copy is complete"
            self.seen += 1
        return function(*args, **(kwargs or {}))


def test_copies_to_the_cpu_are_waited_for():
    images, given = noise(3, 3, 20, 30), parts(3, 20, 30)
    with Copies() as copies:
        tarpeg.augment_batch(images, **given)
        tarpeg.warp_affine(images, given["matrix"], 16)
    assert copies.seen == 6, "ops and values, numbers, boxes and mask; matrices"


def test_operator_checks_memory():
    good = OPERATOR
    images, numbers, _, boxes, mask, _, _, out = good
    torch.ops.tarpeg.run_batch(*final_pass(*good))
    for place, bad, name in (
        (0, images.float(), "images"),
        (0, images[:, :2], "images"),
        (0, images[..., ::2], "images"),
        (1, numbers[:, :18], "numbers"),
        (1, numbers.float(), "numbers"),
        (1, numbers[:1], "numbers"),
        (3, boxes[:1], "boxes"),
        (3, boxes.long(), "boxes"),
        (4, mask[:1], "mask"),
        (4, mask[:, :, :0], "mask"),
        (5, CONSTANTS[:8], "constants"),
        (7, out[:1], "images and out"),
        (7, out[..., ::2], "out"),
        (7, out.double(), "out"),
    ):
        with pytest.raises(RuntimeError, match=f"{name} must"):
            torch.ops.tarpeg.run_batch(*final_pass(*good[:place], bad, *good[place + 1 :]))


def test_portable_code_gives_the_same_bits():
    pictures.assert_portable_is_equal("""
for order, size in product(ORDERS, ((33, 47), (5, 600), (2, 2))):
    images, given = noise(3, 3, *size).contiguous(memory_format=order), parts(3, *size)
    for names in ((), ("flip",), [*given][:4], given):
        for dtype, memory_format in product(pictures.TOLERANCE, ORDERS):
            options = {"dtype": dtype, "memory_format": memory_format}
            write(tarpeg.augment_batch(images, **{name: given[name] for name in names}, **options))
    for names, dtype in product(((), ("flip",), ("flip", "matrix", "mask")), pictures.TOLERANCE):
        write(tarpeg.augment_batch(images[:, :1], **{name: given[name] for name in names}, dtype=dtype))
""")


def test_opcheck_and_one_graph():
    images, numbers, _, *extra, constants, _, out = OPERATOR
    for boxes, mask in (extra, (None, None)):
        arguments = final_pass(images, numbers, 6, boxes, mask, constants, True, out)
        torch.library.opcheck(torch.ops.tarpeg.run_batch.default, arguments)
        gray = (noise(2, 1, 8, 8), numbers, 3, boxes, mask, constants, True, out[:, :1].contiguous())
        torch.library.opcheck(torch.ops.tarpeg.run_batch.default, final_pass(*gray))
    options = parts(2, 8, 8) | {"mean": MEAN, "std": STD}
    pictures.assert_one_graph(lambda x, given: tarpeg.augment_batch(x, **given) * 2, images, options)

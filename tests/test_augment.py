"""Normalisation on the device."""

from __future__ import annotations

import pytest
import torch
from tarpeg import Augment


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_follows_the_images_to_their_device():
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    augment = Augment()
    expected = augment(images)
    assert torch.allclose(augment(images.cuda()).cpu(), expected)

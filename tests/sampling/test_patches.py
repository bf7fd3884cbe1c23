"""Patches: sizes as timm's, and batches of one length: exact epochs, budgets, equal lengths on all ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tarpeg.errors import ShardError
from tarpeg.sampling.patches import PatchBatches, Patches
from tarpeg.sampling.sampler import Sampler
from timm.data.naflex_transforms import get_image_size_for_seq

LENGTHS = [128, 256, 576, 784]


@pytest.mark.parametrize(("patch", "ratio"), [(16, None), (14, 1.0), (32, 0.3)])
def test_sizes_are_those_of_timm(patch, ratio):
    draws = np.random.default_rng(0)
    sizes = np.exp(draws.uniform(np.log(20), np.log(6000), (300, 2))).astype(np.int64)
    sizes = np.concatenate([sizes, [[20, 6000], [3000, 21], [224, 224], [384, 512]]])
    crop = Patches(patch, LENGTHS, 784, max_ratio=ratio)
    for length in LENGTHS:
        found = crop.resized(sizes, length)
        expected = [
            get_image_size_for_seq(tuple(size), patch, length, max_ratio=ratio)[1] for size in sizes.tolist()
        ]
        assert found.tolist() == [list(size) for size in expected]
        assert (found % patch == 0).all() and (found.prod(axis=1) <= length * patch**2).all()


def test_sizes_of_nothing_and_of_very_small_images():
    crop = Patches(16, [4, 16], 16)
    assert crop.resized([(1, 1), (0, 0), (1, 5000)], 16).tolist() == [[64, 64], [16, 16], [16, 256]]
    assert crop.resized(np.zeros((0, 2), np.int32), 4).shape == (0, 2)
    assert crop.boxes([(3, 5)], np.zeros((1, 0))).tolist() == [[0, 0, 3, 5, 0, 0, 48, 80]]


@given(
    samples=st.integers(1, 400),
    world=st.integers(1, 5),
    tokens=st.integers(9, 64),
    lengths=st.sets(st.integers(1, 9), min_size=1, max_size=4),
    shuffles=st.booleans(),
)
def test_every_sample_comes_once_in_batches_within_the_budget(samples, world, tokens, lengths, shuffles):
    crop = Patches(2, sorted(lengths), tokens)
    sampler = Sampler(samples, seed=3, shuffle=shuffles)
    if samples < world:
        with pytest.raises(ShardError, match=f"samples={samples} are too few for world={world}"):
            PatchBatches(crop, samples, world)
        return
    batches = PatchBatches(crop, samples, world, shuffles=shuffles, seed=3)
    seen = [list(batches.requests(sampler, rank, 7, 0, lambda _: False)) for rank in range(world)]
    assert {len(requests) for requests in seen} == {len(batches)}
    ids = [id for requests in zip(*seen, strict=True) for request in requests for id in request.ids.tolist()]
    assert ids == sampler.draw_epoch(7)[0].tolist()
    over = 0
    for step in zip(*seen, strict=True):
        assert len({request.size for request in step}) == 1
        (height, width), counts = step[0].size, [len(request.ids) for request in step]
        assert width == 2 and min(counts) >= 1 and max(counts) - min(counts) <= 1
        over += max(counts) > crop.images_per_batch(height // 2)
    assert over <= (tokens // max(lengths) < 2), (
        "one more if there is one image per rank, and fewer than ranks are left"
    )
    for rank, requests in enumerate(seen):
        largest = dict(batches.largest_by_shape(rank))
        assert all(len(request.ids) <= largest[request.size] for request in requests)
    assert sum(batches.shapes().values()) == len(batches)


def test_lengths_take_turns_and_epochs_have_their_own_order():
    batches = PatchBatches(Patches(16, LENGTHS, 2048), 200, 2, seed=5)
    counts = [(128, 32), (256, 16), (576, 6), (784, 4)]
    assert batches.lengths == [*counts, *counts, *counts, (128, 26)]
    assert batches.global_batch == 32 and batches.shapes()[128 * 16, 16] == 4
    sampler = Sampler(200, seed=5, shuffle=True)
    taken, ends = [], []
    for request in batches.requests(sampler, 1, 0, 0, lambda epoch: epoch < 3):
        taken.append((request.epoch, request.size, request.ids.tolist()))
    orders = [[size for epoch, size, _ in taken if epoch == number] for number in range(3)]
    assert (
        len({tuple(order) for order in orders}) == 3 and len({tuple(sorted(order)) for order in orders}) == 1
    )
    for first in (1, 7, 12):
        rest = batches.requests(sampler, 1, 0, first, lambda epoch: epoch < 3)
        ends.append([(request.epoch, request.size, request.ids.tolist()) for request in rest])
    assert ends == [taken[1:], taken[7:], taken[12:]], "it goes on at each batch"
    in_order = PatchBatches(Patches(16, LENGTHS, 2048), 200, 2, shuffles=False)
    requests = in_order.requests(Sampler(200, 0, False), 0, 0, 0, lambda _: False)
    assert [request.size[0] // 16 for request in requests] == [length for length, _ in in_order.lengths]


def test_fewer_samples_than_ranks_at_the_end():
    crop = Patches(16, [4, 8], 16)
    assert PatchBatches(crop, 13, 3).lengths == [(4, 10), (8, 3)], "12 and 1: the batch before gives two"
    assert PatchBatches(crop, 13, 3, drop_last=True).lengths == [(4, 12)]
    assert PatchBatches(Patches(16, [16], 16), 7, 3).lengths == [(16, 3), (16, 4)], "none to give"
    with pytest.raises(
        ShardError, match=r"samples=3 make no full batch of Patches\(.*drop_last=True leaves none"
    ):
        PatchBatches(crop, 3, 1, drop_last=True)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"patch_size": 0}, "patch_size=0"),
        ({"seq_lens": []}, r"seq_lens=\[\] of Patches must be a list of whole numbers"),
        ({"seq_lens": [64.0]}, r"seq_lens=\[64\.0\] of Patches must be a list"),
        ({"seq_lens": "128"}, "seq_lens='128' of Patches must be a list"),
        ({"seq_lens": [256, 128]}, r"seq_lens=\[256, 128\] of Patches must ascend.*\[128, 256\]"),
        ({"seq_lens": [128, 128]}, r"must ascend, without repetition: \[128\]"),
        (
            {"max_tokens_per_batch": 500},
            "max_tokens_per_batch=500 of Patches is smaller than one image of .* 784 ",
        ),
        ({"max_tokens_per_batch": 2.5}, "max_tokens_per_batch=2.5"),
        ({"max_ratio": 0}, "max_ratio=0 of Patches"),
    ],
)
def test_arguments_that_are_refused(given, text):
    with pytest.raises(ValueError, match=text):
        Patches(**{"seq_lens": LENGTHS, "max_tokens_per_batch": 2048, **given})

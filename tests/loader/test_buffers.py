"""BatchBuffers: lent, kept, copied, given back; whatever a consumer does with its tensors."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch
from tarpeg.loader.buffers import MOST_LENT, BatchBuffers

SHAPE = (2, 3, 4, 5)
SIZE = math.prod(SHAPE)


def lent(slots: BatchBuffers, value: int) -> torch.Tensor:
    slot = slots.acquire()
    slots.view(slot, SHAPE, torch.uint8).fill_(value)
    return slots.lend(slot, SHAPE, torch.uint8)


@pytest.mark.parametrize("shared", [False, True])
def test_memory_is_used_again_when_the_tensor_is_gone(shared: bool) -> None:
    slots = BatchBuffers(SIZE, 0, shared)
    first = lent(slots, 1)
    place = first.data_ptr()
    assert first.is_contiguous(memory_format=torch.channels_last) and (first == 1).all()
    del first
    assert lent(slots, 2).data_ptr() == place


@pytest.mark.parametrize(
    "part",
    [
        lambda images: images,
        lambda images: images[0],
        lambda images: images.permute(0, 2, 3, 1).reshape(-1),
        lambda images: images.numpy(),
        lambda images: images.untyped_storage(),
        lambda images: images.detach().view(torch.int8),
        lambda images: torch.utils.data.TensorDataset(images),
    ],
    ids=["itself", "a row", "a view", "an array", "the storage", "another type", "something that holds it"],
)
def test_whatever_is_kept_of_a_batch_keeps_it(part) -> None:
    slots = BatchBuffers(SIZE, 0, shared=False)
    first = lent(slots, 7)
    place, kept = first.data_ptr(), part(first)
    del first
    gc.collect()
    for _ in range(5):
        assert lent(slots, 9).data_ptr() != place
    del kept
    gc.collect()
    assert place in {lent(slots, 9).data_ptr() for _ in range(5)}


def test_a_consumer_that_keeps_all_is_given_copies() -> None:
    slots = BatchBuffers(SIZE, 2, shared=False)
    batches = [lent(slots, value) for value in range(50)]
    assert all((batch == value).all() for value, batch in enumerate(batches))
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in batches)
    assert len({batch.data_ptr() for batch in batches}) == 50
    ahead = [slots.acquire() for _ in range(3)]
    assert len(set(ahead)) == 3, "there are always slots to fill"


def test_what_was_taken_comes_back_what_was_lent_does_not() -> None:
    slots = BatchBuffers(SIZE, 1, shared=False)
    kept = [lent(slots, value) for value in range(MOST_LENT)]
    for _ in range(3):
        assert slots.acquire() != slots.acquire()
        slots.release_acquired()
    assert [int(batch.max()) for batch in kept] == list(range(MOST_LENT))


def test_tensors_may_die_in_any_thread() -> None:
    slots = BatchBuffers(SIZE, 2, shared=False)
    box: list[torch.Tensor] = []
    for value in range(200):
        box.append(lent(slots, value % 251))
        assert (box[0] == value % 251).all()
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()


def test_tensors_outlive_the_slots() -> None:
    slots = BatchBuffers(SIZE, 0, shared=False)
    kept = lent(slots, 5)
    del slots
    gc.collect()
    assert (kept == 5).all()
    kept.fill_(6)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 3, 8, 6), (2, 3, 3, 8, 6), (0, 3, 8, 6), (1, 3, 1, 1)])
def test_shapes_and_types(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    slots = BatchBuffers(math.prod(shape) * dtype.itemsize, 0, shared=False)
    images = slots.lend(slots.acquire(), shape, dtype)
    assert images.shape == shape and images.dtype == dtype
    assert images.movedim(-3, -1).is_contiguous()

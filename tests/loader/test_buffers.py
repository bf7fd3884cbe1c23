"""BatchBuffers: memory that is lent, kept, copied and reused, for any use of the lent tensors."""

from __future__ import annotations

import errno
import gc
import json
import math
import mmap
import os
import resource
import sys
import threading

import pytest
import torch
from tarpeg.loader.buffers import MOST_LENT, BatchBuffers

SHAPE = (2, 3, 4, 5)
NBYTES = math.prod(SHAPE)


def lent(buffers: BatchBuffers, value: int) -> torch.Tensor:
    number = buffers.acquire()
    buffers.view(number, SHAPE, torch.uint8).fill_(value)
    return buffers.lend(number, SHAPE, torch.uint8)


@pytest.mark.parametrize("shared", [False, True])
def test_memory_is_used_again_when_the_tensor_is_gone(shared: bool) -> None:
    buffers = BatchBuffers(NBYTES, 0, shared)
    first = lent(buffers, 1)
    place = first.data_ptr()
    assert first.is_contiguous(memory_format=torch.channels_last) and (first == 1).all()
    del first
    assert lent(buffers, 2).data_ptr() == place


REFERENCES = {
    "itself": lambda images: images,
    "a row": lambda images: images[0],
    "a view": lambda images: images.permute(0, 2, 3, 1).reshape(-1),
    "an array": lambda images: images.numpy(),
    "the storage": lambda images: images.untyped_storage(),
    "another type": lambda images: images.detach().view(torch.int8),
    "an object that refers to it": lambda images: torch.utils.data.TensorDataset(images),
}


@pytest.mark.sweep
@pytest.mark.parametrize("part", REFERENCES.values(), ids=REFERENCES)
def test_any_reference_to_a_batch_keeps_it(part) -> None:
    buffers = BatchBuffers(NBYTES, 0, shared=False)
    first = lent(buffers, 7)
    place, kept = first.data_ptr(), part(first)
    del first
    gc.collect()
    for _ in range(5):
        assert lent(buffers, 9).data_ptr() != place
    del kept
    gc.collect()
    assert place in {lent(buffers, 9).data_ptr() for _ in range(5)}


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults of Linux")
def test_a_buffer_is_mapped_into_a_worker_by_one_call() -> None:
    pages = 1024
    buffers = BatchBuffers(pages * mmap.PAGESIZE, 0, shared=True)
    numbers = [buffers.acquire() for _ in range(4)]
    for number in numbers:
        buffers.memory(number)[:] = 1  # of this process: their memory is there

    def faults(number: int, *prepared: int) -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for nbytes in prepared:
            buffers.prepare(number, nbytes)
        buffers.memory(number)[:] = 2 + number
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    reading, writing = os.pipe()
    if not (child := os.fork()):
        whole, half = buffers.nbytes, buffers.nbytes // 2
        found = [faults(0), faults(1, whole), faults(2, half), faults(3, half, whole, half)]
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    plain, *prepared = json.loads(os.read(reading, 1000))
    assert all((buffers.memory(number) == 2 + number).all() for number in numbers)
    if plain < pages:
        pytest.skip("shared memory has huge pages here")
    if prepared[0] >= pages:
        pytest.skip("the kernel has no MADV_POPULATE_READ")
    assert prepared[0] < pages / 4 and pages / 2 <= prepared[1] < pages * 3 / 4 and prepared[2] < pages / 4


def test_a_consumer_that_keeps_all_batches_gets_copies() -> None:
    buffers = BatchBuffers(NBYTES, 2, shared=False)
    batches = [lent(buffers, value) for value in range(50)]
    assert all((batch == value).all() for value, batch in enumerate(batches))
    assert all(batch.is_contiguous(memory_format=torch.channels_last) for batch in batches)
    assert len({batch.data_ptr() for batch in batches}) == 50
    ahead = [buffers.acquire() for _ in range(3)]
    assert len(set(ahead)) == 3, "there are always buffers to fill"
    del buffers
    gc.collect()
    assert all((batch == value).all() for value, batch in enumerate(batches)), "tensors outlive the buffers"
    for batch in batches:
        batch.fill_(6)


def test_release_acquired_leaves_lent_buffers_alone() -> None:
    buffers = BatchBuffers(NBYTES, 1, shared=False)
    kept = [lent(buffers, value) for value in range(MOST_LENT)]
    for _ in range(3):
        assert buffers.acquire() != buffers.acquire()
        buffers.release_acquired()
    assert [int(batch.max()) for batch in kept] == list(range(MOST_LENT))


def test_tensors_may_die_in_any_thread() -> None:
    buffers = BatchBuffers(NBYTES, 2, shared=False)
    box: list[torch.Tensor] = []
    for value in range(200):
        box.append(lent(buffers, value % 251))
        assert (box[0] == value % 251).all()
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(3, 3, 8, 6), (2, 3, 3, 8, 6), (0, 3, 8, 6), (1, 3, 1, 1)])
def test_shapes_and_types(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    buffers = BatchBuffers(math.prod(shape) * dtype.itemsize, 0, shared=False)
    images = buffers.lend(buffers.acquire(), shape, dtype)
    assert images.shape == shape and images.dtype == dtype
    assert images.movedim(-3, -1).is_contiguous()


@pytest.mark.parametrize("shared", [False, True])
def test_too_little_memory_is_an_error_with_a_remedy(shared: bool) -> None:
    with pytest.raises(OSError, match=r"5 batches of 1,152,921,504,606\.8 MB .*batch_size") as caught:
        BatchBuffers(1 << 60, 1, shared)
    assert caught.value.errno == errno.ENOMEM

"""The global random generators of torch, numpy and Python, seeded for each sample or batch."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from .adapters import Albumentations
from .torchvision import Step

# Held by the thread whose steps draw: the generators belong to the whole process.
_generators = threading.RLock()
# The thread that holds it is not in a forked process.
os.register_at_fork(after_in_child=lambda: globals().update(_generators=threading.RLock()))


@contextlib.contextmanager
def own_generators() -> Iterator[Callable[[int, Sequence[Step]], None]]:
    """Yield a function that seeds the generators of torch (CPU), numpy and Python for a sample and its steps.

    The states of this process are restored at the end: a transform does not change what others draw. Tensors
    are made on the CPU and without gradients meanwhile, on one thread of torch: its sums over many floats
    depend on the number of threads, which is 1 in worker processes.
    """
    with _generators, _restored([torch.default_generator]):
        threads = torch.get_num_threads()
        is_elsewhere = torch.get_default_device().type != "cpu"
        device = torch.device("cpu") if is_elsewhere else contextlib.nullcontext()
        try:
            torch.set_num_threads(1)
            with torch.no_grad(), device:
                yield _seed
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the generators of torch (CPU, and ``device`` if it is CUDA), numpy and Python for a batch.

    Their states are restored at the end.
    """
    generators = _of_torch(device)
    with _generators, _restored(generators):
        _seed(seed, ())
        for generator in generators[1:]:
            generator.manual_seed(seed)
        yield


def states(device: torch.device) -> list[bytes]:
    """Return the states of the generators that ``seeded`` seeds: equal if nothing was drawn between."""
    own = [generator.get_state().numpy().tobytes() for generator in _of_torch(device)]
    return [*own, pickle.dumps(np.random.get_state()), pickle.dumps(random.getstate())]


def _of_torch(device: torch.device) -> list[torch.Generator]:
    """Return torch's generator of the CPU, and that of ``device`` if it is CUDA."""
    if device.type != "cuda":
        return [torch.default_generator]
    index = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[index]]


@contextlib.contextmanager
def _restored(generators: Sequence[torch.Generator]) -> Iterator[None]:
    """Restore the states of these generators of torch, and of those of numpy and Python, at the end."""
    states = [generator.get_state() for generator in generators]
    others = np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        np.random.set_state(others[0])
        random.setstate(others[1])


def _seed(seed: int, steps: Sequence[Step]) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)
    own = (step for step in steps if isinstance(step, Albumentations))
    for number, step in enumerate(own):  # each with other draws, as the generators above go on
        step.seed(seed + number)

"""tarpeg as a data loader of torchtitan, with a loop like its own: torchtitan_loader.py SHARDS OUT STEPS.

On several processes: torchrun --nproc-per-node 2 torchtitan_loader.py SHARDS OUT STEPS. It goes on from the
newest checkpoint in OUT, on 1, 2 or 4 processes.

In torchtitan itself, ``dataloader=ShardDataLoader.Config(dataset_path=..., global_batch_size=...)`` is a part
of the Trainer's configuration. Without torchtitan, stand-ins of its two classes take their place here.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, distributed, nn
from torch.distributed.checkpoint.stateful import Stateful

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ImportError:

    class BaseDataLoader(Stateful, ABC):  # type: ignore[no-redef]
        """As that of torchtitan 0.3: an iterator, a state, and a configuration that builds the loader."""

        @dataclass(kw_only=True, slots=True)
        class Config:
            """Of a loader; ``build`` makes it."""

            _owner: ClassVar[Any] = None
            dataset: str = ""
            dataset_path: str | None = None

            def build(self, **arguments: Any) -> Any:
                """Return the loader, of ranks and sizes that are known by now."""
                return type(self)._owner(config=self, **arguments)

        def __init_subclass__(cls) -> None:
            cls.Config._owner = cls

        @abstractmethod
        def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]: ...


class ShardDataLoader(BaseDataLoader):  # type: ignore[misc]
    """The microbatches of one data-parallel rank: ``({"input": images}, labels)``.

    Finite epochs end on all ranks in the same step, and every sample comes once. The state is equal on all
    ranks, and the number of ranks may change between two runs, within an epoch too: the batch of a step has
    ``global_batch_size`` samples, and each rank takes its part of them in as many microbatches as it needs.
    At the end of an epoch the microbatches are smaller, so that a step has as many as before.

    Args:
        config: See ``Config``.
        dp_world_size: Number of data-parallel ranks.
        dp_rank: That of this process. Its tensor- and pipeline-parallel peers have the same.
        local_batch_size: Samples per microbatch.
        unused: torchtitan also passes tokenizer, seq_len and snapshot_every_n_steps.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """``dataset_path``: the shards, as a glob, a folder or a brace pattern."""

        size: int = 224
        epochs: int | None = None  # None: as many as the steps of the training need
        # torchtitan's training.global_batch_size: set it, and the ranks may change within an epoch.
        global_batch_size: int | None = None
        drop_last: bool = False  # True: all batches have the same size, for torch.compile
        seed: int = 0
        workers: int | None = None

    def __init__(
        self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, **unused: Any
    ) -> None:
        batch = config.global_batch_size or local_batch_size * dp_world_size
        self.microbatches, rest = divmod(batch, local_batch_size * dp_world_size)
        if rest or not self.microbatches:
            raise ValueError(
                f"global_batch_size={batch} must be a multiple of local_batch_size={local_batch_size} times "
                f"dp_world_size={dp_world_size}"
            )
        self.config = config
        self.is_within_step = False
        self.loader = tarpeg.Loader(
            tarpeg.Split(config.dataset_path, tarpeg.RandomResizedCrop(config.size), flip=0.5),
            batch // dp_world_size,
            augment=tarpeg.Augment(),
            seed=config.seed,
            workers=config.workers,
            rank=dp_rank,
            world=dp_world_size,
            config=tarpeg.LoaderConfig(drop_last=config.drop_last),
        )

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Yield the rest of the epochs."""
        while self.config.epochs is None or self.loader.sampler.epoch < self.config.epochs:
            for images, labels in self.loader:
                parts = [each.tensor_split(self.microbatches) for each in (images, labels)]
                for number, (image, label) in enumerate(zip(*parts, strict=True), start=1):
                    self.is_within_step = number < self.microbatches
                    yield {"input": image}, label

    def state_dict(self) -> dict[str, Any]:
        """Return the position: integers and a text, equal on all ranks."""
        if self.is_within_step:
            raise RuntimeError("a checkpoint must be saved between two steps, not between their microbatches")
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        self.loader.load_state_dict(state_dict)


class Training:
    """What torchtitan's Trainer does, in small: steps of microbatches, and checkpoints of DCP.

    Args:
        data: The loader.
        out: Folder of the checkpoints.
    """

    def __init__(self, data: ShardDataLoader, out: Path) -> None:
        torch.manual_seed(0)
        head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
        self.net = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.data, self.out, self.step = data, out, 0
        self.states = {
            "model": self.net,
            "optimizer": self.optimizer,
            "dataloader": data,
            "train_state": self,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the number of steps."""
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.step = state_dict["step"]

    def load(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        found = sorted(self.out.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
        if found:
            dcp.load(self.states, checkpoint_id=found[-1])

    def run(self, steps: int, every: int = 5) -> None:
        """Train until the data or the steps end; save every few steps, and at the last of them."""
        batches = iter(self.data)
        while self.step < steps:
            try:
                microbatches = [next(batches) for _ in range(self.data.microbatches)]
            except StopIteration:  # on all ranks in the same step
                break
            loss = self._train_step(microbatches)
            self.step += 1
            if os.environ.get("RANK", "0") == "0":
                print(f"step {self.step}: loss {loss:.4f}")
            if self.step % every == 0 or self.step == steps:
                dcp.save(self.states, checkpoint_id=self.out / f"step-{self.step}")

    def _train_step(self, microbatches: list[tuple[dict[str, Tensor], Tensor]]) -> float:
        """Return the mean loss over all samples of the step, of which ranks may have different numbers."""
        count = _summed(torch.tensor(float(sum(len(labels) for _, labels in microbatches))))
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, labels in microbatches:
            loss = nn.functional.cross_entropy(self.net(inputs["input"]), labels, reduction="sum") / count
            loss.backward()
            total += loss.detach()
        for parameter in self.net.parameters():  # FSDP does this in torchtitan
            if parameter.grad is not None:
                _summed(parameter.grad)
        self.optimizer.step()
        return float(_summed(total))


def _summed(numbers: Tensor) -> Tensor:
    """Add them up over all processes, in place."""
    if distributed.is_initialized():
        distributed.all_reduce(numbers)
    return numbers


def main(shards: str, out: str, steps: str) -> None:
    """Train, on one process or on those of torchrun."""
    rank, world = 0, 1
    if "RANK" in os.environ:
        distributed.init_process_group("gloo")
        rank, world = distributed.get_rank(), distributed.get_world_size()
    config = ShardDataLoader.Config(dataset_path=shards, size=64, epochs=3, global_batch_size=16)
    data = config.build(dp_rank=rank, dp_world_size=world, local_batch_size=4)
    training = Training(data, Path(out))
    training.load()
    training.run(int(steps))
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4])

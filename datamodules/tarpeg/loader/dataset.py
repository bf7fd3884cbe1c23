"""A loader for tools that take a ``DataLoader``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from ..sampling.epochs import epoch_of_loop, fit_loop_above
from .batch import AnyBatch
from .loader import Loader
from .state import State

_NO_WORKERS = (
    "must be 0: the loader has its own, see workers= and threads= of tarpeg.Loader or ShardDataModule"
)


class Dataset(IterableDataset[Any]):
    """A loader for tools that take a ``DataLoader``: ``DataLoader(tarpeg.Dataset(loader), batch_size=None)``.

    Its items are the loader's batches. Each ``iter()`` is the loader's next epoch, unless
    ``loader.sampler.set_epoch(e)`` set it. ``state_dict()`` is the position behind the last batch that was
    taken: a tool that reads ahead is ahead in it, too. The loader has its own rank, workers and memory.

    Args:
        loader: A ``tarpeg.Loader``, or a loader of ``ShardDataModule``.
        batches: Function that returns the batches of the loader's next epoch, for example
            ``data.augmented``; by default those of the loader itself.

    Raises:
        ValueError: For another loader. From ``iter()``: for ``num_workers`` above 0, for a loader that was
            created before ``torch.distributed`` was initialised, and for Accelerate's ``prepare`` on several
            processes, which would divide the batches a second time.

    Example:
        >>> split = tarpeg.Split(shards, tarpeg.RandomResizedCrop(64))
        >>> loader = tarpeg.Loader(split, batch_size=8, workers=0)
        >>> outer = torch.utils.data.DataLoader(tarpeg.Dataset(loader), batch_size=None)
        >>> next(iter(outer)).image.shape
        torch.Size([8, 3, 64, 64])
        >>> loader.close()
    """

    def __init__(self, loader: Loader, batches: Callable[[Loader], Iterator[Any]] = iter) -> None:
        if not isinstance(loader, Loader):
            raise ValueError(
                f"loader={loader!r} must be a tarpeg.Loader(...), or a loader of ShardDataModule: "
                "data.train_dataloader()"
            )
        if isinstance(batches, torch.nn.Module) or not callable(batches):
            raise ValueError(
                f"batches={type(batches).__name__} must be a function that returns the batches of a loader, "
                "such as data.augmented of a ShardDataModule(augment=...)"
            )
        self.loader = loader
        self._batches = batches
        default_collate_fn_map.update(dict.fromkeys(AnyBatch.__args__, _refuse_to_collate))

    def __len__(self) -> int:
        """Batches per epoch; TypeError for a stream without ``samples``."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        if (worker := get_worker_info()) is not None:
            raise ValueError(f"num_workers={worker.num_workers} of the DataLoader {_NO_WORKERS}")
        self.loader.ranks.check_processes()
        self._refuse_accelerate()
        return self._unless_divided(self._batches(self.loader))

    def __reduce__(self) -> Any:
        """Refuse to be pickled: a DataLoader would do it to start its worker processes."""
        raise ValueError(f"a Dataset cannot be pickled, so num_workers of a DataLoader {_NO_WORKERS}")

    def state_dict(self) -> State:
        """Position of the loader, equal on all ranks: integers, and the text ``data``."""
        return self.loader.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Continue at the position in ``state``."""
        self.loader.load_state_dict(state)

    def _unless_divided(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._refuse_accelerate()  # again: a StatefulDataLoader is asked for its state, and begins, before
        self._follow_trainer()
        yield from batches

    def _follow_trainer(self) -> None:
        """Begin with the epoch of Lightning's Trainer if that is further, as after a checkpoint.

        Lightning sets the epoch of a loader and of samplers, and a DataLoader has none that it would find.
        """
        sampler = self.loader.sampler
        epoch, batch = sampler.place
        loop = fit_loop_above(sys._getframe(1))
        current = 0 if loop is None else epoch_of_loop(loop)[0]
        if not (sampler.has_state or sampler.is_set) and batch == 0 and current > epoch:
            sampler.set_epoch(current)
        if current:
            self.loader.warn_of_lengths(current)

    def _refuse_accelerate(self) -> None:
        """Raise ValueError if Accelerate takes the batches of one rank and divides them over all of them."""
        accelerate: Any = sys.modules.get("accelerate.data_loader")
        if accelerate is None or accelerate.PartialState().num_processes == 1:
            return
        active = accelerate.GradientState().active_dataloader
        outer = getattr(active, "dataset", None)
        # A resumed transformers.Trainer leaves out batches of a DataLoader that was not prepared.
        is_dispatched = outer is self and not isinstance(active, accelerate.SkipDataLoader)
        if is_dispatched or getattr(outer, "dataset", None) is self:  # the latter: an IterableDatasetShard
            raise ValueError(
                "Accelerate would divide the batches of this rank over all ranks. Do not give this "
                "DataLoader to Accelerator.prepare(): the loader has batches of its own on every rank. In a "
                "transformers.Trainer, return it from get_train_dataloader()."
            )


def _refuse_to_collate(*_: Any, **__: Any) -> NoReturn:
    raise ValueError(
        "batch_size= of the DataLoader must be None: the items of a tarpeg.Dataset are batches already"
    )

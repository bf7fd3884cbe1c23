"""The patches suite: sequences of patches for NaFlex models, by timm's own loader and by this library.

Whole photographs at their own aspect ratios, without flips: timm's ``no_aug=True``, as its augmentations crop
them. Each group has one length, so that both make batches of equally many images.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tarpeg.augment.module import Augment
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.sampling.patches import Patches
from torch import Tensor
from torch.utils.data import ConcatDataset

from .loader import DataLoaderContestant, LoaderRun, speeds
from .loader_data import REPEATS, LoaderData
from .loader_peers import Batches, Peer, for_ever, loose_files
from .report import Report

PATCH = 16


class Sequences(NamedTuple):
    """What a group makes.

    length: patches of an image, with the padding. batch: images of a batch, a multiple of 8 as timm has it.
    is_normalised: float32 patches, normalised on the CPU where the batch arrives; False: those that go to a
    GPU, which normalises them.
    """

    length: int
    batch: int
    is_normalised: bool

    def __str__(self) -> str:
        return f"{self.length} patches, {'normalised' if self.is_normalised else 'not normalised'}"


GROUPS = {
    "256": Sequences(256, 64, True),
    "576": Sequences(576, 32, True),
    "1024": Sequences(1024, 16, True),
    "256, for a GPU": Sequences(256, 64, False),
    "576, for a GPU": Sequences(576, 32, False),
}
"""By name."""


def timm_loader(data: LoaderData, group: str, workers: int) -> Any:
    """Return timm's loader of a group: a ``NaFlexPrefetchLoader``, or the ``DataLoader`` in it."""
    timm = importlib.import_module("timm.data")
    factory = importlib.import_module("timm.data.naflex_loader")
    sequences = GROUPS[group]
    files: Any = ConcatDataset([timm.ImageDataset(str(loose_files(data)))] * REPEATS)
    loader = factory.create_naflex_loader(
        files,
        patch_size=PATCH,
        train_seq_lens=(sequences.length,),
        batch_size=sequences.batch,
        is_training=True,
        no_aug=True,
        num_workers=workers,
        pin_memory=False,
        device=torch.device("cpu"),
    )
    return loader if sequences.is_normalised else loader.loader


def _by_timm(data: LoaderData, group: str, workers: int) -> Batches:
    return ((sequences["patches"], sequences) for sequences, _ in for_ever(timm_loader(data, group, workers)))


PEERS = {"timm's create_naflex_loader": Peer("timm", "timm.data.naflex_loader", _by_timm)}
_OURS = tuple(
    f"tarpeg, {kind}" for kind in ("ordinary, workers", "tiled, workers", "tiled, threads", "packed, workers")
)


@dataclass(frozen=True)
class PatchContestant(DataLoaderContestant):
    """A contestant of a length, the group. Its batches begin with the patches."""

    peers = PEERS

    @property
    def ahead(self) -> int:
        """Batches that may have been prefetched: of a peer the two per worker, and one."""
        return super().ahead + (self.peer is not None)

    def loader(self, shards: list[Path]) -> Loader:
        """Loader of this library's contestant."""
        workers, threads = self.engine
        config = LoaderConfig(workers=workers, threads=threads)
        augment = Augment() if GROUPS[self.group].is_normalised else None
        return Loader(self.split(shards), config=config, augment=augment)

    def split(self, shards: list[Path]) -> Split:
        """Split that this library's contestant reads."""
        length, batch, _ = GROUPS[self.group]
        return Split(shards, Patches(PATCH, [length], length * batch))

    def expects(self, images: Tensor) -> bool:
        """Whether patches have the shape and dtype of the group; those of timm's workers are float32."""
        length, batch, is_normalised = GROUPS[self.group]
        is_float = is_normalised or self.peer is not None
        is_right = images.dtype == (torch.float32 if is_float else torch.uint8)
        is_small = 0 < len(images) <= batch
        return is_right and is_small and tuple(images.shape[1:]) == (length, 3 * PATCH**2)

    def _ours(self) -> Iterator[Any]:
        for batch in for_ever(self.loader(self.data.shards(self.kind))):
            yield batch.image["patches"], batch.image


def measure_patches(run: LoaderRun) -> Report:
    """Measure both with sequences of each length."""

    def contestants(group: str) -> list[PatchContestant]:
        names = [*PEERS, *_OURS]
        return [PatchContestant(name, group, run.data, run.settings.workers) for name in names]

    groups = {name: str(sequences) for name, sequences in GROUPS.items()}
    report = run.measure(("ordinary", "tiled", "packed"), groups, contestants)
    work = f"photographs -> sequences of patches of {PATCH} x {PATCH} -> batches"
    return replace(report, work=work, figures=tuple(speeds(report.rows)))

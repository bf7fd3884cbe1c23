"""tarpeg (tar + JPEG): feed image training from WebDataset shards, decoding only the crop.

Importing this package is cheap: it neither compiles, nor prints, nor initialises CUDA, nor imports
lightning. Each public name is imported when it is first touched; touching an operator loads the native
library, and builds it where that has not happened yet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .augment import Augment as Augment
    from .batch import Batch as Batch
    from .batch import KeyedBatch as KeyedBatch
    from .crops import CenterCrop as CenterCrop
    from .crops import RandomCrop as RandomCrop
    from .crops import RandomResizedCrop as RandomResizedCrop
    from .datamodule import ShardDataModule as ShardDataModule
    from .errors import BuildError as BuildError
    from .errors import DecodeError as DecodeError
    from .errors import ShardError as ShardError
    from .errors import Status as Status
    from .folders import Folder as Folder
    from .loader import Split as Split
    from .monitor import DataStallMonitor as DataStallMonitor
    from .ops import decode_batch as decode_batch
    from .ops import decode_crop as decode_crop
    from .ops import image_sizes as image_sizes
    from .ops import tile_jpeg as tile_jpeg
    from .packing import make_shards as make_shards
    from .prepare import FolderShards as FolderShards
    from .prepare import SyntheticShards as SyntheticShards
    from .synth import Photos as Photos

__version__ = "0.1.0"

_HOME = {
    "Augment": "augment",
    "Batch": "batch",
    "BuildError": "errors",
    "CenterCrop": "crops",
    "DataStallMonitor": "monitor",
    "DecodeError": "errors",
    "Folder": "folders",
    "FolderShards": "prepare",
    "KeyedBatch": "batch",
    "Photos": "synth",
    "RandomCrop": "crops",
    "RandomResizedCrop": "crops",
    "ShardDataModule": "datamodule",
    "ShardError": "errors",
    "Split": "loader",
    "Status": "errors",
    "SyntheticShards": "prepare",
    "decode_batch": "ops",
    "decode_crop": "ops",
    "image_sizes": "ops",
    "make_shards": "packing",
    "tile_jpeg": "ops",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tarpeg' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

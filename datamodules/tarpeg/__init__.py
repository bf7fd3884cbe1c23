"""tarpeg (tar + JPEG): feed image training from WebDataset shards, decoding only the crop.

Importing this package is cheap: it neither compiles, nor prints, nor initialises CUDA, nor imports
lightning. Each public name is imported when it is first touched; touching an operator loads the native
library, and builds it where that has not happened yet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import codecs as codecs
    from .augment import Augment as Augment
    from .augment_ops import augment_batch as augment_batch
    from .augment_ops import warp_affine as warp_affine
    from .batch import Batch as Batch
    from .batch import ExtraBatch as ExtraBatch
    from .batch import KeyedBatch as KeyedBatch
    from .benchmarks.bench import measure as measure
    from .cache import CacheReport as CacheReport
    from .cache import build_cache as build_cache
    from .cacheplan import Layout as Layout
    from .codecs import Raw as Raw
    from .codecs import Resized as Resized
    from .codecs import Tiled as Tiled
    from .contactsheet import contact_sheet as contact_sheet
    from .crops import CenterCrop as CenterCrop
    from .crops import Progressive as Progressive
    from .crops import RandomCrop as RandomCrop
    from .crops import RandomResizedCrop as RandomResizedCrop
    from .crops import Whole as Whole
    from .datamodule import ShardDataModule as ShardDataModule
    from .distortions import Affine as Affine
    from .distortions import Color as Color
    from .distortions import Erase as Erase
    from .distortions import Mask as Mask
    from .doctor import Diagnosis as Diagnosis
    from .doctor import diagnose as diagnose
    from .errors import BuildError as BuildError
    from .errors import CacheError as CacheError
    from .errors import DecodeError as DecodeError
    from .errors import ShardError as ShardError
    from .errors import Status as Status
    from .folders import Folder as Folder
    from .mixing import Mix as Mix
    from .monitor import DataStallMonitor as DataStallMonitor
    from .ops import decode_batch as decode_batch
    from .ops import decode_crop as decode_crop
    from .ops import image_sizes as image_sizes
    from .ops import tile_jpeg as tile_jpeg
    from .order import Blocks as Blocks
    from .packing import make_shards as make_shards
    from .prepare import CachedShards as CachedShards
    from .prepare import FolderShards as FolderShards
    from .prepare import SyntheticShards as SyntheticShards
    from .split import Split as Split
    from .streaming import Streaming as Streaming
    from .synth import Photos as Photos
    from .verify import VerifyReport as VerifyReport
    from .verify import verify_cache as verify_cache

__version__ = "0.1.0"

_HOME = {
    "Affine": "distortions",
    "Augment": "augment",
    "Batch": "batch",
    "Blocks": "order",
    "BuildError": "errors",
    "CacheError": "errors",
    "CacheReport": "cache",
    "CachedShards": "prepare",
    "CenterCrop": "crops",
    "Color": "distortions",
    "DataStallMonitor": "monitor",
    "DecodeError": "errors",
    "Diagnosis": "doctor",
    "Erase": "distortions",
    "ExtraBatch": "batch",
    "Folder": "folders",
    "FolderShards": "prepare",
    "KeyedBatch": "batch",
    "Layout": "cacheplan",
    "Mask": "distortions",
    "Mix": "mixing",
    "Photos": "synth",
    "Progressive": "crops",
    "RandomCrop": "crops",
    "RandomResizedCrop": "crops",
    "Raw": "codecs",
    "Resized": "codecs",
    "ShardDataModule": "datamodule",
    "ShardError": "errors",
    "Split": "split",
    "Status": "errors",
    "Streaming": "streaming",
    "SyntheticShards": "prepare",
    "Tiled": "codecs",
    "VerifyReport": "verify",
    "Whole": "crops",
    "augment_batch": "augment_ops",
    "build_cache": "cache",
    "codecs": "",
    "contact_sheet": "contactsheet",
    "decode_batch": "ops",
    "decode_crop": "ops",
    "diagnose": "doctor",
    "image_sizes": "ops",
    "make_shards": "packing",
    "measure": "benchmarks.bench",
    "tile_jpeg": "ops",
    "verify_cache": "verify",
    "warp_affine": "augment_ops",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tarpeg' has no attribute {name!r}")
    if not _HOME[name]:
        return importlib.import_module(f".{name}", __name__)
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

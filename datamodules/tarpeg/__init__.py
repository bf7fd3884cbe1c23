"""tarpeg (tar + JPEG): feed image training from WebDataset shards, decoding only the crop.

Importing this package is cheap: it neither compiles, nor prints, nor initialises CUDA, nor imports
lightning. Each public name is imported when it is first touched; touching an operator loads the native
library, and builds it where that has not happened yet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .augment.distortions import Affine as Affine
    from .augment.distortions import Color as Color
    from .augment.distortions import Erase as Erase
    from .augment.distortions import Mask as Mask
    from .augment.module import Augment as Augment
    from .augment.module import Mix as Mix
    from .benchmarks.measure import measure as measure
    from .cache import codecs as codecs
    from .cache.build import CacheReport as CacheReport
    from .cache.build import build_cache as build_cache
    from .cache.codecs import Raw as Raw
    from .cache.codecs import Resized as Resized
    from .cache.codecs import Tiled as Tiled
    from .cache.plan import Layout as Layout
    from .cache.verify import VerifyReport as VerifyReport
    from .cache.verify import verify_cache as verify_cache
    from .datamodule import ShardDataModule as ShardDataModule
    from .datasets.prepare import CachedShards as CachedShards
    from .datasets.prepare import FolderShards as FolderShards
    from .datasets.prepare import SyntheticShards as SyntheticShards
    from .datasets.synthetic import Photos as Photos
    from .datasets.writer import make_shards as make_shards
    from .diagnostics.doctor import Diagnosis as Diagnosis
    from .diagnostics.doctor import diagnose as diagnose
    from .diagnostics.monitor import DataStallMonitor as DataStallMonitor
    from .diagnostics.preview import contact_sheet as contact_sheet
    from .errors import BuildError as BuildError
    from .errors import CacheError as CacheError
    from .errors import DecodeError as DecodeError
    from .errors import ShardError as ShardError
    from .errors import Status as Status
    from .loader.batch import Batch as Batch
    from .loader.batch import ExtraBatch as ExtraBatch
    from .loader.batch import KeyedBatch as KeyedBatch
    from .loader.split import Split as Split
    from .ops import matrices as matrices
    from .ops.augment import augment_batch as augment_batch
    from .ops.augment import warp_affine as warp_affine
    from .ops.decode import decode_batch as decode_batch
    from .ops.decode import decode_crop as decode_crop
    from .ops.decode import image_sizes as image_sizes
    from .ops.decode import tile_jpeg as tile_jpeg
    from .sampling.crops import CenterCrop as CenterCrop
    from .sampling.crops import Progressive as Progressive
    from .sampling.crops import RandomCrop as RandomCrop
    from .sampling.crops import RandomResizedCrop as RandomResizedCrop
    from .sampling.crops import Whole as Whole
    from .sampling.sampler import Blocks as Blocks
    from .shards.folder import Folder as Folder
    from .shards.stream import Streaming as Streaming

__version__ = "0.1.0"

_HOME = {
    "Affine": "augment.distortions",
    "Augment": "augment.module",
    "Batch": "loader.batch",
    "Blocks": "sampling.sampler",
    "BuildError": "errors",
    "CacheError": "errors",
    "CacheReport": "cache.build",
    "CachedShards": "datasets.prepare",
    "CenterCrop": "sampling.crops",
    "Color": "augment.distortions",
    "DataStallMonitor": "diagnostics.monitor",
    "DecodeError": "errors",
    "Diagnosis": "diagnostics.doctor",
    "Erase": "augment.distortions",
    "ExtraBatch": "loader.batch",
    "Folder": "shards.folder",
    "FolderShards": "datasets.prepare",
    "KeyedBatch": "loader.batch",
    "Layout": "cache.plan",
    "Mask": "augment.distortions",
    "Mix": "augment.module",
    "Photos": "datasets.synthetic",
    "Progressive": "sampling.crops",
    "RandomCrop": "sampling.crops",
    "RandomResizedCrop": "sampling.crops",
    "Raw": "cache.codecs",
    "Resized": "cache.codecs",
    "ShardDataModule": "datamodule",
    "ShardError": "errors",
    "Split": "loader.split",
    "Status": "errors",
    "Streaming": "shards.stream",
    "SyntheticShards": "datasets.prepare",
    "Tiled": "cache.codecs",
    "VerifyReport": "cache.verify",
    "Whole": "sampling.crops",
    "augment_batch": "ops.augment",
    "build_cache": "cache.build",
    "codecs": "cache.codecs",
    "contact_sheet": "diagnostics.preview",
    "decode_batch": "ops.decode",
    "decode_crop": "ops.decode",
    "diagnose": "diagnostics.doctor",
    "image_sizes": "ops.decode",
    "make_shards": "datasets.writer",
    "matrices": "ops.matrices",
    "measure": "benchmarks.measure",
    "tile_jpeg": "ops.decode",
    "verify_cache": "cache.verify",
    "warp_affine": "ops.augment",
}

_MODULES = {"codecs", "matrices"}  # public names that are modules

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tarpeg' has no attribute {name!r}")
    home = importlib.import_module(f".{_HOME[name]}", __name__)
    return home if name in _MODULES else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

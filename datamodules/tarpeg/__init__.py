"""tarpeg (tar + JPEG): feed image training from WebDataset shards, decoding only the crop.

Importing this package is cheap: it neither compiles, nor prints, nor initialises CUDA, nor imports
lightning. Each public name is imported when it is first touched; touching an operator loads the native
library, and builds it where that has not happened yet.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .augment.distortions import Affine as Affine, Erase as Erase, GridMask as GridMask
    from .augment.mixing import Mix as Mix
    from .augment.module import Augment as Augment
    from .augment.policies import (
        AugMix as AugMix,
        AutoAugment as AutoAugment,
        ColorJitter as ColorJitter,
        GaussianBlur as GaussianBlur,
        Grayscale as Grayscale,
        Policy as Policy,
        RandAugment as RandAugment,
        Solarize as Solarize,
        ThreeAugment as ThreeAugment,
        TimmRandAugment as TimmRandAugment,
        TrivialAugmentWide as TrivialAugmentWide,
    )
    from .cache import codecs as codecs
    from .cache.build import CacheReport as CacheReport, build_cache as build_cache
    from .cache.codecs import (
        Original as Original,
        Packed as Packed,
        Raw as Raw,
        Resized as Resized,
        Tiled as Tiled,
    )
    from .cache.layout import Layout as Layout
    from .cache.verify import VerifyReport as VerifyReport, verify_cache as verify_cache
    from .datamodule import ShardDataModule as ShardDataModule
    from .datasets.coco import Coco as Coco
    from .datasets.pairs import MaskFolder as MaskFolder
    from .datasets.prepare import (
        CachedShards as CachedShards,
        FolderShards as FolderShards,
        SyntheticShards as SyntheticShards,
    )
    from .datasets.scenes import Scenes as Scenes
    from .datasets.synthetic import Photos as Photos
    from .datasets.voc import Voc as Voc
    from .datasets.writer import make_shards as make_shards
    from .datasets.yolo import Yolo as Yolo
    from .diagnostics.doctor import Diagnosis as Diagnosis, diagnose as diagnose
    from .diagnostics.epoch import EpochPlan as EpochPlan, plan_epoch as plan_epoch
    from .diagnostics.monitor import DataStallMonitor as DataStallMonitor
    from .diagnostics.preview import comparison_sheet as comparison_sheet, contact_sheet as contact_sheet
    from .errors import (
        BuildError as BuildError,
        CacheError as CacheError,
        DecodeError as DecodeError,
        ResumeError as ResumeError,
        ShardError as ShardError,
        Status as Status,
    )
    from .loader.batch import (
        Batch as Batch,
        ExtraBatch as ExtraBatch,
        KeyedBatch as KeyedBatch,
        KeyedTargetBatch as KeyedTargetBatch,
        MixedBatch as MixedBatch,
        MixedExtraBatch as MixedExtraBatch,
        MixedTargetBatch as MixedTargetBatch,
        RaggedImages as RaggedImages,
        TargetBatch as TargetBatch,
    )
    from .loader.conditions import SizeAndCrop as SizeAndCrop
    from .loader.config import LoaderConfig as LoaderConfig
    from .loader.dataset import Dataset as Dataset
    from .loader.loader import Loader as Loader
    from .loader.mixture import (
        Mixture as Mixture,
        MixtureLoader as MixtureLoader,
    )
    from .loader.padding import PadMask as PadMask
    from .loader.preprocessing import Preprocessing as Preprocessing, preprocessing as preprocessing
    from .loader.split import Split as Split
    from .loader.text import Text as Text, Tokens as Tokens
    from .ops import matrices as matrices
    from .ops.augment import augment_batch as augment_batch, warp_affine as warp_affine
    from .ops.decode import (
        decode_batch as decode_batch,
        decode_crop as decode_crop,
        image_sizes as image_sizes,
        pack_jpeg as pack_jpeg,
        tile_jpeg as tile_jpeg,
        unpack_jpeg as unpack_jpeg,
    )
    from .ops.gather import (
        Gathered as Gathered,
        decode_gathered as decode_gathered,
        gather_tiles as gather_tiles,
    )
    from .ops.programs import Op as Op, run_programs as run_programs
    from .sampling.buckets import AspectBuckets as AspectBuckets
    from .sampling.crops import (
        CenterCrop as CenterCrop,
        Progressive as Progressive,
        RandomCrop as RandomCrop,
        RandomResizedCrop as RandomResizedCrop,
        Whole as Whole,
    )
    from .sampling.geometry import View as View
    from .sampling.iou_crop import RandomIoUCrop as RandomIoUCrop
    from .sampling.mosaic import Mosaic as Mosaic
    from .sampling.padded import (
        LetterBox as LetterBox,
        RandomShortestSize as RandomShortestSize,
        ScaleJitter as ScaleJitter,
    )
    from .sampling.paste import CopyPaste as CopyPaste
    from .sampling.patches import Patches as Patches
    from .sampling.sampler import Blocks as Blocks
    from .shards.folder import Folder as Folder
    from .shards.label import Label as Label
    from .shards.source import Source as Source
    from .shards.stream import Streaming as Streaming
    from .targets.boxes import Boxes as Boxes
    from .targets.instance_map import InstanceMap as InstanceMap
    from .targets.instances import InstanceMasks as InstanceMasks
    from .targets.keypoints import Keypoints as Keypoints
    from .targets.maps import FloatMap as FloatMap
    from .targets.masks import Masks as Masks
    from .targets.protocols import Target as Target

__version__ = "0.1.0"

_NAMES = {
    "augment.distortions": "Affine Erase GridMask",
    "augment.mixing": "Mix",
    "augment.module": "Augment",
    "augment.policies": (
        "AugMix AutoAugment ColorJitter GaussianBlur Grayscale Policy RandAugment Solarize ThreeAugment "
        "TimmRandAugment TrivialAugmentWide"
    ),
    "cache.codecs": "codecs Original Packed Raw Resized Tiled",
    "cache.build": "CacheReport build_cache",
    "cache.layout": "Layout",
    "cache.verify": "VerifyReport verify_cache",
    "datamodule": "ShardDataModule",
    "datasets.coco": "Coco",
    "datasets.pairs": "MaskFolder",
    "datasets.prepare": "CachedShards FolderShards SyntheticShards",
    "datasets.scenes": "Scenes",
    "datasets.synthetic": "Photos",
    "datasets.voc": "Voc",
    "datasets.writer": "make_shards",
    "datasets.yolo": "Yolo",
    "diagnostics.doctor": "Diagnosis diagnose",
    "diagnostics.epoch": "EpochPlan plan_epoch",
    "diagnostics.monitor": "DataStallMonitor",
    "diagnostics.preview": "comparison_sheet contact_sheet",
    "errors": "BuildError CacheError DecodeError ResumeError ShardError Status",
    "loader.batch": "Batch ExtraBatch KeyedBatch KeyedTargetBatch MixedBatch MixedExtraBatch "
    "MixedTargetBatch RaggedImages TargetBatch",
    "targets.boxes": "Boxes",
    "loader.conditions": "SizeAndCrop",
    "loader.config": "LoaderConfig",
    "loader.dataset": "Dataset",
    "targets.instance_map": "InstanceMap",
    "targets.instances": "InstanceMasks",
    "targets.keypoints": "Keypoints",
    "loader.loader": "Loader",
    "loader.mixture": "Mixture MixtureLoader",
    "loader.padding": "PadMask",
    "loader.preprocessing": "Preprocessing preprocessing",
    "targets.maps": "FloatMap",
    "targets.masks": "Masks",
    "loader.split": "Split",
    "targets.protocols": "Target",
    "loader.text": "Text Tokens",
    "ops.matrices": "matrices",
    "ops.augment": "augment_batch warp_affine",
    "ops.gather": "Gathered decode_gathered gather_tiles",
    "ops.decode": "decode_batch decode_crop image_sizes pack_jpeg tile_jpeg unpack_jpeg",
    "ops.programs": "Op run_programs",
    "sampling.crops": "CenterCrop Progressive RandomCrop RandomResizedCrop Whole",
    "sampling.geometry": "View",
    "sampling.buckets": "AspectBuckets",
    "sampling.patches": "Patches",
    "sampling.iou_crop": "RandomIoUCrop",
    "sampling.mosaic": "Mosaic",
    "sampling.paste": "CopyPaste",
    "sampling.padded": "LetterBox RandomShortestSize ScaleJitter",
    "sampling.sampler": "Blocks",
    "shards.folder": "Folder",
    "shards.label": "Label",
    "shards.source": "Source",
    "shards.stream": "Streaming",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {"codecs", "matrices"}  # public names that are modules
# Old public names, which work for this version, with a warning.
_RENAMED = {"Color": "ColorJitter", "Mask": "GridMask"}
_REMOVED = {"measure": "benchmarks need a clone of tarpeg's repository: python tools/bench.py suite=..."}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        errors = importlib.import_module(".errors", __name__)
        errors.warn(f"tarpeg.{name} is now tarpeg.{_RENAMED[name]}; the old name works in this version only")
        name = _RENAMED[name]
    if name not in _HOME:
        hint = f": {_REMOVED[name]}" if name in _REMOVED else ""
        raise AttributeError(f"module 'tarpeg' has no attribute {name!r}{hint}")
    home = importlib.import_module(f".{_HOME[name]}", __name__)
    return home if name in _MODULES else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

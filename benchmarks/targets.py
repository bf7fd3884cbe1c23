"""The targets suite: images with boxes and masks, by torchvision v2 with a DataLoader and by this library.

From photographs with eight objects each, to a random scale and a crop of 512. The contestants of all groups
are measured in the same rounds: so the time with targets is compared with the time without.
"""

from __future__ import annotations

import importlib
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from tarpeg.cache.build import build_cache
from tarpeg.cache.codecs import Tiled
from tarpeg.datasets.synthetic import Photos, picture_parts
from tarpeg.loader.config import LoaderConfig
from tarpeg.loader.loader import Loader
from tarpeg.loader.split import Split
from tarpeg.sampling.padded import ScaleJitter
from tarpeg.shards.mapped import Shards
from tarpeg.shards.pillow import as_tensor
from tarpeg.targets.boxes import Boxes
from tarpeg.targets.instances import InstanceMasks
from tarpeg.targets.masks import Masks
from torch import Tensor
from torch.utils.data import DataLoader, RandomSampler

from .decode_peers import BATCH, decode_jpeg
from .loader import DataLoaderContestant, LoaderRun
from .loader_data import REPEATS, LoaderData
from .loader_peers import Batches, Peer, for_ever
from .photos import FolderPhotos
from .report import Report, Row

_SIDE = 512
_OBJECTS = 8
_CLASSES = 80
_CORNERS = (12, 40)
_BOXES, _MASK, _OUTLINES = Boxes("json:objects"), Masks("png"), InstanceMasks("json:objects")
GROUPS: dict[str, tuple[str, Any]] = {
    "none": ("no targets", None),
    "boxes": ("8 boxes", _BOXES),
    "mask": ("a semantic mask", _MASK),
    "both": ("8 boxes and a semantic mask", [_BOXES, _MASK]),
    "objects": ("8 boxes and a mask of each object", [_BOXES, _OUTLINES]),
}
"""By name, what it has and our targets."""


@dataclass(frozen=True)
class AnnotatedPhotos(Photos):
    """Photographs with outlines of objects at random places, in COCO's form, and a mask of their classes."""

    def members(self, index: int, split: str) -> dict[str, bytes]:
        """Return the JPEG, the JSON and the PNG of a sample."""
        _, height, width = picture_parts(self, index, split)
        rng = np.random.default_rng([self.seed, index])
        mask, objects = Image.new("L", (width, height)), []
        for _ in range(_OBJECTS):
            outline, label = _outline(rng, height, width), int(rng.integers(1, _CLASSES + 1))
            ImageDraw.Draw(mask).polygon([*map(tuple, outline.tolist())], fill=label)
            (left, top), (right, bottom) = outline.min(axis=0).tolist(), outline.max(axis=0).tolist()
            objects.append(
                {
                    "segmentation": [outline.reshape(-1).tolist()],
                    "area": round((right - left) * (bottom - top) * 0.7, 2),
                    "iscrowd": 0,
                    "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
                    "category_id": label,
                }
            )
        png = io.BytesIO()
        mask.save(png, "PNG")
        document = {"objects": objects}
        return {
            "jpg": super().members(index, split)["jpg"],
            "json": json.dumps(document).encode(),
            "png": png.getvalue(),
        }


@dataclass(frozen=True)
class AnnotatedFolder(AnnotatedPhotos, FolderPhotos):
    """The same of parts of real photographs."""


def _outline(rng: np.random.Generator, height: int, width: int) -> Any:
    """Return the corners of a polygon, (x, y) to a hundredth of a pixel, with area and within the image."""
    angles = np.sort(rng.uniform(0, math.tau, int(rng.integers(*_CORNERS))))
    reach = min(height, width) * rng.uniform(0.05, 0.25) * rng.uniform(0.6, 1, len(angles))
    centre = rng.uniform(0.1, 0.9, 2) * (width, height)
    corners = centre + np.stack([np.cos(angles), np.sin(angles)], axis=1) * reach[:, None]
    return corners.clip(0, (width, height)).round(2)


def annotated(photos: Photos) -> AnnotatedPhotos:
    """Return the same photographs with objects."""
    options = {each.name: getattr(photos, each.name) for each in fields(photos) if each.init}
    return AnnotatedFolder(**options) if isinstance(photos, FolderPhotos) else AnnotatedPhotos(**options)


class TargetData(LoaderData):
    """Photographs with objects: as shards, as a cache of tiles and masks in bands, and as files."""

    def cached(self, name: str, make: Any) -> Path:
        """Path of what ``make`` writes, apart from that of the other suites."""
        return super().cached(f"targets-{name}", make)

    def build(self, kind: str, within: Path) -> None:
        """Write the photographs once."""
        if kind == "tiled":
            build_cache(self.shards("ordinary", 1), within, Tiled(self.tile), masks="png")
        else:
            super().build(kind, within)

    def files(self) -> Path:
        """Folder of the members as NUMBER.jpg, NUMBER.json and NUMBER.png."""

        def make(folder: Path) -> None:
            shards = Shards(self.shards("ordinary", 1))
            folder.mkdir()
            for number in range(len(shards)):
                for name in ("jpg", "json", "png"):
                    (content,) = shards.members([number], name)
                    (folder / f"{number:08d}.{name}").write_bytes(content or b"")

        return self.cached("files", make)


class _Files:
    """Files with targets as torchvision's references read them: a map-style dataset."""

    def __init__(self, folder: Path, group: str) -> None:
        self._paths, self._group = sorted(folder.glob("*.jpg")), group
        v2, self._kinds = (_torchvision(name) for name in ("transforms.v2", "tv_tensors"))
        fill = {self._kinds.Image: 0, self._kinds.Mask: 255 if group in ("mask", "both") else 0}
        scaled = v2.ScaleJitter((_SIDE, _SIDE), antialias=True)
        cropped = v2.RandomCrop(_SIDE, pad_if_needed=True, fill=fill)
        self._transform = v2.Compose([scaled, cropped, v2.RandomHorizontalFlip()])
        self._sanitize = v2.functional.sanitize_bounding_boxes

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Tensor, dict[str, Any]]:
        path = self._paths[number]
        image = self._kinds.Image(decode_jpeg(as_tensor(path.read_bytes())))
        image, target = self._transform(image, self._target(path, image.shape[-2:]))
        if "boxes" in target:
            target["boxes"], is_kept = self._sanitize(target["boxes"], min_size=1)
            target |= {name: target[name][is_kept] for name in ("labels", "masks") if name in target}
        return image, target

    def _target(self, path: Path, size: tuple[int, int]) -> dict[str, Any]:
        target: dict[str, Any] = {}
        if self._group in ("boxes", "both", "objects"):
            objects = json.loads(path.with_suffix(".json").read_bytes())["objects"]
            boxes = torch.tensor([each["bbox"] for each in objects], dtype=torch.float32)
            boxes[:, 2:] += boxes[:, :2]
            target["boxes"] = self._kinds.BoundingBoxes(boxes, format="XYXY", canvas_size=size)
            target["labels"] = torch.tensor([each["category_id"] for each in objects])
        if self._group in ("mask", "both"):
            with Image.open(path.with_suffix(".png")) as mask:
                target["mask"] = self._kinds.Mask(torch.from_numpy(np.array(mask)))
        if self._group == "objects":
            coco = importlib.import_module("pycocotools.mask")
            outlines = [coco.merge(coco.frPyObjects(each["segmentation"], *size)) for each in objects]
            target["masks"] = self._kinds.Mask(torch.from_numpy(coco.decode(outlines)).permute(2, 0, 1))
        return target


def _torchvision(name: str) -> Any:
    return importlib.import_module(f"torchvision.{name}")


def _collated(samples: list[Any]) -> tuple[Tensor, list[Any]]:
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), [*targets]


def _by_torchvision(data: TargetData, group: str, workers: int) -> Batches:
    files: Any = _Files(data.files(), group)
    epoch = RandomSampler(files, replacement=True, num_samples=REPEATS * len(files))
    return for_ever(
        DataLoader(
            files,
            BATCH,
            sampler=epoch,
            num_workers=workers,
            collate_fn=_collated,
            drop_last=True,
            persistent_workers=True,
            multiprocessing_context="fork",
        )
    )


PEERS = {
    "files + DataLoader + torchvision v2": Peer("torchvision pycocotools", "torchvision", _by_torchvision)
}


@dataclass(frozen=True)
class TargetContestant(DataLoaderContestant):
    """A contestant of a kind of targets, the group."""

    peers = PEERS

    def _ours(self) -> Iterator[Any]:
        workers, threads = self.engine
        config = LoaderConfig(BATCH, workers=workers, threads=threads)
        for batch in for_ever(Loader(self.split(self.data.shards("tiled")), config=config)):
            targets = batch[1]
            yield batch.image, targets if isinstance(targets, Tensor) else [*targets]

    def split(self, shards: list[Path]) -> Split:
        """Split that this library's contestant reads."""
        return Split(shards, ScaleJitter(_SIDE), flip=0.5, target=None, targets=GROUPS[self.group][1])

    def expects(self, images: Tensor) -> bool:
        """Whether images have the shape and dtype of this suite."""
        return tuple(images.shape) == (BATCH, 3, _SIDE, _SIDE) and images.dtype == torch.uint8


_OURS = ("tarpeg, tiled, workers", "tarpeg, tiled, threads")


def measure_targets(run: LoaderRun) -> Report:
    """Measure both with each kind of targets."""
    given = run.data
    data = TargetData(given.folder, annotated(given.photos), given.images, given.tile)
    for done, kind in enumerate(("ordinary", "tiled")):
        run.advance(f"making {kind} shards", done / 2)
        data.shards(kind)
    data.files()

    def contestants(group: str) -> list[TargetContestant]:
        return [TargetContestant(name, group, data, run.settings.workers) for name in (*PEERS, *_OURS)]

    groups = {name: text for name, (text, _) in GROUPS.items()}
    report = run.measure((), groups, contestants, together=True)
    work = f"photographs and targets -> ScaleJitter({_SIDE}) -> batches of {BATCH}"
    return replace(report, work=work, figures=tuple(_shares(report.rows)))


def _shares(rows: tuple[Row, ...]) -> Iterator[str]:
    """Yield a line per contestant: what part of its processor time its targets take."""
    times = {(row.name, row.group): row.processor for row in rows}
    for name in dict.fromkeys(row.name for row in rows):
        alone = times.get((name, "none"))
        shares = [
            f"{group} {1 - alone / times[name, group]:.0%}"
            for group in GROUPS
            if alone and group != "none" and (name, group) in times
        ]
        if shares:
            yield f"part of the processor time that targets take, {name}: {', '.join(shares)}"

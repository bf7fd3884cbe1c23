"""Write WebDataset shards of a folder, of images with annotations, or of drawn photographs.

Settings: conf/make_shards.yaml.
"""

from dataclasses import MISSING
from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from tarpeg.datasets.coco import Coco
from tarpeg.datasets.pairs import MaskFolder
from tarpeg.datasets.scenes import Scenes
from tarpeg.datasets.synthetic import Photos
from tarpeg.datasets.voc import Voc
from tarpeg.datasets.writer import make_shards
from tarpeg.datasets.yolo import Yolo
from tarpeg.shards.folder import Folder

from .hints import check_truths
from .overrides import one_line_errors

_SOURCES: dict[str, Any] = {
    **{"synthetic": Photos, "scenes": Scenes, "folder": Folder},
    **{"coco": Coco, "voc": Voc, "yolo": Yolo},
}
_MASKS = "folder images=... masks=..."  # the other kind of source=folder
_FILES = {"annotations": "FILE.json"}
_PACKING = ("samples", "prefix", "samples_per_shard", "workers", "replace", "max_bad")


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="make_shards")
def main(cfg: DictConfig) -> None:
    """Write the shards and print one line about them."""
    packing = {name: cfg[name] for name in _PACKING}
    with one_line_errors("make_shards", ValueError):
        check_truths("make_shards", cfg)
        if cfg.source not in _SOURCES:
            *others, last = _SOURCES
            raise ValueError(f"source={cfg.source!r} must be {', '.join(others)} or {last}")
        if OmegaConf.is_missing(cfg, "out") or cfg.out is None:
            raise ValueError("out is not set: pass out=DIR")
        report = make_shards(cfg.out, source_of(cfg), **packing)
    count = len(report.shards)
    shards = f"{count} shard{'s' * (count != 1)} in {cfg.out}: {report.samples} samples"
    size = f"{report.bytes / 1e6:.1f} MB, {report.bits_per_pixel:.2f} bits per pixel, {report.seconds:.1f} s"
    Console(soft_wrap=True).print(f"{shards}, {size}", markup=False, highlight=False)


def source_of(cfg: DictConfig) -> Any:
    """Return the source of the configuration; raises ValueError for settings that do not belong to it."""
    kinds = {**_SOURCES, _MASKS: MaskFolder}
    kind = MaskFolder if cfg.source == "folder" and cfg.images is not None else _SOURCES[cfg.source]
    fields = kind.__dataclass_fields__
    # The settings of drawn photographs have values in the file.
    for name in {*map(str, cfg)} - {*fields, *Scenes.__dataclass_fields__, *_PACKING}:
        owners = [source for source, other in kinds.items() if name in other.__dataclass_fields__]
        if owners and cfg[name] is not None:
            raise ValueError(
                f"{name}={cfg[name]} is of images to pack: give source={' or '.join(owners)} too"
            )
    given = cast("dict[str, Any]", OmegaConf.to_container(OmegaConf.masked_copy(cfg, [*fields])))
    for name, field in fields.items():
        if field.default is MISSING and field.default_factory is MISSING and given.get(name) is None:
            other = "; root=DIR packs a directory with one sub-directory per class" * (kind is MaskFolder)
            raise ValueError(f"{name} is not set: pass {name}={_FILES.get(name, 'DIR')}{other}")
    return kind(**{name: value for name, value in given.items() if value is not None})

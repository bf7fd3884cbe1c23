"""Write WebDataset shards of drawn photographs or scenes, or of a folder. Settings: conf/make_shards.yaml."""

from typing import Any, cast

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from tarpeg.datasets.scenes import Scenes
from tarpeg.datasets.synthetic import Photos
from tarpeg.datasets.writer import make_shards
from tarpeg.shards.folder import Folder

from .overrides import one_line_errors

_DRAWN: dict[str, type[Photos]] = {"synthetic": Photos, "scenes": Scenes}


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="make_shards")
def main(cfg: DictConfig) -> None:
    """Write the shards and print one line about them."""
    packing = {name: cfg[name] for name in ("samples", "prefix", "samples_per_shard", "workers", "replace")}
    with one_line_errors("make_shards", ValueError):
        if cfg.source not in ("folder", *_DRAWN):
            raise ValueError(f"source={cfg.source!r} must be {', '.join(_DRAWN)} or folder")
        if cfg.root is not None and cfg.source != "folder":
            raise ValueError(f"root={cfg.root} is of images to pack: give source=folder too")
        for name in ["out", "root"] if cfg.source == "folder" else ["out"]:
            if OmegaConf.is_missing(cfg, name) or cfg[name] is None:
                raise ValueError(f"{name} is not set: pass {name}=DIR")
        source: Folder | Photos
        if cfg.source == "folder":
            source = Folder(cfg.root, cfg.seed)
        else:
            kind = _DRAWN[cfg.source]
            given = OmegaConf.masked_copy(cfg, list(kind.__dataclass_fields__))
            settings = cast("dict[str, Any]", OmegaConf.to_container(given))
            source = kind(**{name: value for name, value in settings.items() if value is not None})
        report = make_shards(cfg.out, source, **packing)
    count = len(report.shards)
    shards = f"{count} shard{'s' * (count != 1)} in {cfg.out}: {report.samples} samples"
    size = f"{report.bytes / 1e6:.1f} MB, {report.bits_per_pixel:.2f} bits per pixel, {report.seconds:.1f} s"
    Console(soft_wrap=True).print(f"{shards}, {size}", markup=False, highlight=False)

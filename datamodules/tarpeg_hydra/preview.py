"""Draw the network's inputs, before and after augmentation. Settings: conf/preview.yaml."""

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from tarpeg import comparison_sheet, contact_sheet
from tarpeg.errors import similar

from .overrides import one_line_errors

_KINDS = ("train", "val", "test", "predict")


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="preview")
def main(cfg: DictConfig) -> None:
    """Draw a contact sheet of the data in `cfg` and print its path."""
    with one_line_errors("preview", ValueError):
        kind = str(cfg.split).partition("/")[0]
        if kind not in _KINDS:
            raise ValueError(f"split={cfg.split} must be one of {', '.join(_KINDS)}{similar(kind, _KINDS)}")
        for other in _KINDS if cfg.data.get(kind) else ():
            if other != kind and other in cfg.data:
                cfg.data[other] = None  # neither drawn nor required
        data = instantiate(cfg.data, augment=instantiate(cfg.get("augment")), workers=0)
        options = {name: cfg[name] for name in ("split", "samples", "epoch", "columns")}
        if cfg.compare not in (None, "torchvision"):
            raise ValueError(f"compare={cfg.compare!r} must be torchvision or null")
        draw = comparison_sheet if cfg.compare else contact_sheet
        done = draw(data, cfg.out, **options)
        split = data.splits[cfg.split]
        plan = [str(split.plan())] if split.transform is not None else []
    lines = [*plan, *([str(done)] * bool(cfg.compare)), f"written: {cfg.out}"]
    Console(soft_wrap=True).print(*lines, sep="\n", markup=False, highlight=False)

"""Print what an epoch of a training will be, before anything is decoded. Settings: conf/plan.yaml."""

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from tarpeg import plan_epoch
from tarpeg.errors import similar

from .overrides import one_line_errors


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="plan")
def main(cfg: DictConfig) -> None:
    """Print the plan of an epoch of the data in `cfg`."""
    with one_line_errors("plan", ValueError):
        names = [name for name in ("train", "val", "test", "predict") if cfg.data.get(name)]
        if cfg.split not in names:
            raise ValueError(
                f"split={cfg.split} must be one of {', '.join(names)}{similar(str(cfg.split), names)}"
            )
        for other in names:
            if other != cfg.split:
                cfg.data[other] = None  # not required
        data = instantiate(cfg.data, augment=None, workers=0)
        loader = getattr(data, f"{cfg.split}_dataloader")()
        if cfg.ranks != 1:
            loader = loader.on_rank(0, cfg.ranks)
        plan = plan_epoch(loader, cfg.epoch, captions=cfg.captions)
    Console(soft_wrap=True).print(f"{cfg.split}, {plan}", markup=False, highlight=False)

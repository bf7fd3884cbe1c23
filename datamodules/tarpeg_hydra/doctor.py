"""Report what is installed, what is loaded and how fast it is. Settings: conf/doctor.yaml."""

import sys

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig
from rich.console import Console
from tarpeg import diagnose
from tarpeg.cache.report import summarise_shards

from .overrides import one_line_errors


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="doctor")
def main(cfg: DictConfig) -> None:
    """Print the diagnosis; exit with 1 if something is broken."""
    if not isinstance(cfg.speed, bool):
        sys.exit(f"doctor: speed={cfg.speed!r} must be true or false")
    with Console(stderr=True).status(
        "inspecting, then measuring for ten seconds" if cfg.speed else "inspecting"
    ):
        lines = _plans(cfg) if cfg.get("data") else []
        found = diagnose(speed=cfg.speed)
    console = Console(soft_wrap=True, highlight=False)
    for line in [*str(found).splitlines(), *lines]:
        console.print(line, style="none" if line.startswith(" ") else "bold", markup=False)
    sys.exit(not found.is_well)


def _plans(cfg: DictConfig) -> list[str]:
    """Return what the splits of ``cfg.data`` do natively and in Python, its cost, and their caches."""
    lines = []
    with one_line_errors("doctor"):
        for name, split in instantiate(cfg.data).splits.items():
            if split is not None:
                about = [] if split.streaming else summarise_shards(split.shards)
                lines.append(f"plan of {name}")
                lines += [f"  {line}" for line in (*str(split.plan()).splitlines(), *about)]
    return lines

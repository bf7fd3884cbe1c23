"""Report what is installed, what is loaded and how fast it is. Settings: conf/doctor.yaml."""

import sys

import hydra
from omegaconf import DictConfig
from rich.console import Console
from tarpeg import diagnose


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="doctor")
def main(cfg: DictConfig) -> None:
    """Print the diagnosis; exit with 1 if something is broken."""
    if not isinstance(cfg.speed, bool):
        sys.exit(f"doctor: speed={cfg.speed!r} must be true or false")
    with Console(stderr=True).status(
        "inspecting, then measuring for ten seconds" if cfg.speed else "inspecting"
    ):
        found = diagnose(speed=cfg.speed)
    console = Console(soft_wrap=True, highlight=False)
    for line in str(found).splitlines():
        console.print(line, style="none" if line.startswith(" ") else "bold", markup=False)
    sys.exit(not found.is_well)

"""Compare ways to decode, augment and load training images, ours and others'. Settings: conf/bench.yaml."""

import os
import sys

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy and torch are loaded
from tarpeg import measure


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="bench")
def main(cfg: DictConfig) -> None:
    """Run the suite of `cfg`, print its table and write a CSV and a chart."""
    settings = {str(name): value for name, value in OmegaConf.to_container(cfg, resolve=True).items()}
    out = settings.pop("out")
    try:
        report = measure(**settings)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(report.title, report.table(), sep="\n")
    for line in (*report.notes, *(f"written: {path}" for path in report.write(out))):
        console.print(line, markup=False, soft_wrap=True)

"""Measure ways to decode a training crop, ours and others'. Settings: conf/bench.yaml."""

import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.table import Table

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy and torch are loaded
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg.benchmarks.measure import measure


@hydra.main(version_base="1.3", config_path="../conf", config_name="bench")
def main(cfg: DictConfig) -> None:
    """Measure what `cfg` asks for, show it as a table and write a CSV and a chart."""
    settings = {str(name): value for name, value in OmegaConf.to_container(cfg, resolve=True).items()}
    try:
        out, report = settings.pop("out"), measure(**settings)
    except ValueError as error:
        sys.exit(f"bench: {error}")
    head, rows = report.table()
    table = Table()
    for name in head:
        table.add_column(name, justify="right" if name[:2] in ("us", "sp", "of") else "left", no_wrap=True)
    following = [*(row.group for row in report.rows[1:]), None]
    for row, cells, group in zip(report.rows, rows, following, strict=True):
        table.add_row(*cells, end_section=row.group != group)
    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(report.title, table, sep="\n")
    for line in (*report.notes, *(f"written: {path}" for path in report.write(out))):
        console.print(line, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

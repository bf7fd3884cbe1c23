"""Compare ways to decode, augment and load training images, ours and others'. Settings: conf/bench.yaml.

The comparison itself is ``benchmarks`` of the checkout; the installed package does not have it.
"""

import os
import sys
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from .overrides import one_line_errors

# Before numpy and torch are loaded.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

CHECKOUT = Path(__file__).resolve().parents[2]


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="bench")
def main(cfg: DictConfig) -> None:
    """Run the suite of `cfg`, print its table and write a CSV and a chart."""
    if not (CHECKOUT / "benchmarks" / "measure.py").is_file():
        sys.exit(
            "bench: the installed package has no benchmarks. They need a clone of tarpeg's repository: run "
            "`python tools/bench.py` there. `tarpeg doctor` measures this installation"
        )
    sys.path.insert(0, str(CHECKOUT))
    from benchmarks.measure import measure

    settings: Any = OmegaConf.to_container(cfg, resolve=True)
    out = settings.pop("out")
    with one_line_errors("bench", ValueError):
        report = measure(**settings)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    console.print(report.title, report.table(), sep="\n")
    for line in (*report.notes, *(f"written: {path}" for path in report.write(out))):
        console.print(line, markup=False, soft_wrap=True)

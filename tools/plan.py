"""Print what an epoch of a training will be, before anything is decoded. Settings: conf/plan.yaml."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg_hydra.command import run

if __name__ == "__main__":
    run("plan")

"""Compare ways to decode, augment and load training images, ours and others'. Settings: conf/bench.yaml."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg_hydra.command import run

if __name__ == "__main__":
    run("bench")

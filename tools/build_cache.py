"""Convert local or remote shards into a local cache that decodes quickly. Settings: conf/build_cache.yaml."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg_hydra.command import run

if __name__ == "__main__":
    run("build_cache")

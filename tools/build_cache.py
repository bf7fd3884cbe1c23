"""Turn shards, wherever they are, into a local cache, quick to decode. Settings: conf/build_cache.yaml."""

import sys
from pathlib import Path

import hydra
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from hydra_hints import check_braces
from tarpeg.cache.report import built, verified
from tarpeg.errors import ShardError


@hydra.main(version_base="1.3", config_path="../conf", config_name="build_cache")
def main(cfg: DictConfig) -> None:
    """Build what `cfg` describes, and say in a few lines what is there; or check what is there already."""
    try:
        if cfg.verify:
            lines, is_good = verified(cfg)
        else:
            settings = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
            lines, is_good = built({**settings, "codec": instantiate(cfg.codec)}), True
    except MissingMandatoryValue as error:
        sys.exit(f"build_cache: {error.full_key} is not set: give {error.full_key}=...")
    except (ShardError, ValueError) as error:
        sys.exit(f"build_cache: {error}")
    except InstantiationException as error:
        sys.exit(f"build_cache: codec: {error.__cause__ or error}")
    for line in lines:
        Console(soft_wrap=True).print(line, markup=False, highlight=False)
    sys.exit(not is_good)


if __name__ == "__main__":
    check_braces("build_cache", sys.argv[1:])
    main()

"""Convert local or remote shards into a local cache that decodes quickly. Settings: conf/build_cache.yaml."""

import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from typing import Any

import hydra
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from tarpeg import Layout, build_cache, verify_cache
from tarpeg.cache.report import progress_bar, summarise_build, summarise_check
from tarpeg.processes import dask_executor

from .hints import check_truths
from .overrides import one_line_errors, with_overrides


@contextlib.contextmanager
def open_executor(cfg: DictConfig) -> Iterator[Executor | int | None]:
    """Yield the executor of the configuration, or the number of local processes."""
    if cfg.workers is not None and (not isinstance(cfg.workers, int) or cfg.workers < 0):
        raise ValueError(f"workers={cfg.workers} must be a number of processes, 0 or more, or null")
    if cfg.executor == "local":
        yield cfg.workers
    elif cfg.executor == "dask":
        with dask_executor(cfg.address) as executor:
            yield executor
    else:
        raise ValueError(f"executor={cfg.executor} must be local or dask")


def build(cfg: DictConfig) -> list[str]:
    """Build the cache of the configuration and return its summary."""
    settings: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    layout = Layout(**{name: settings[name] for name in Layout.__dataclass_fields__})
    options = {"codec": instantiate(cfg.codec), "layout": layout}
    options |= {name: settings[name] for name in ("masks", "images", "max_bad", "replace")}
    options["targets"] = instantiate(cfg.targets, _convert_="all")
    with open_executor(cfg) as executor, progress_bar() as show:
        report = build_cache(settings["source"], cfg.dest, executor=executor, progress=show, **options)
    return summarise_build(report, cfg.measure)


@hydra.main(version_base="1.3", config_path="pkg://tarpeg.conf", config_name="build_cache")
def main(cfg: DictConfig) -> None:
    """Build or verify a cache and print a summary; exit with 1 if something is wrong."""
    is_good = True
    with one_line_errors("build_cache", ValueError):
        check_truths("build_cache", cfg)
        if cfg.verify:
            with open_executor(cfg) as executor, progress_bar() as show:
                targets = instantiate(cfg.targets, _convert_="all")
                report = verify_cache(cfg.dest, executor, targets=targets, progress=show)
            lines, is_good = summarise_check(report), report.is_good
        else:
            lines = build(cfg)
    for line in lines:
        Console(soft_wrap=True).print(with_overrides(line), markup=False, highlight=False)
    sys.exit(not is_good)

"""Lines that ``train.py`` prints: the summary of a run, and the command line that goes on from its end."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import lightning
import tarpeg
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_original_cwd
from lightning.pytorch.profilers import PassThroughProfiler, Profiler, PyTorchProfiler
from lightning.pytorch.utilities import rank_zero_only
from rich.console import Console
from tarpeg_hydra.overrides import in_overrides, quoted

from .checkpoints import SECRET

_OF_ONE_RUN = ("ckpt_path", "verbose", "data.allow_other_data")
"""Settings that do not go over to the run that goes on."""
_NOISE = (
    ".*LeafSpec",
    "You have overridden `on_before_batch_transfer`",
    "Grad strides do not match",
    "The dirpath has changed from",  # ckpt_path=
    "The number of training batches .* smaller than the logging interval",  # a small data set
    "You defined a `valid",  # data.val=null
)
"""Warnings that need no action."""


def show(text: str) -> None:
    """Print a line as it is, without colours or line breaks."""
    Console().print(text, highlight=False, markup=False, soft_wrap=True)


def is_first_rank() -> bool:
    """Return whether this process is that of rank 0, before there is a Trainer too."""
    return not getattr(rank_zero_only, "rank", 0)


def silence() -> None:
    """Hide advertisements, warnings that need no action, and what rank 0 prints as well."""
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    # "data: " is the monitor's verdict, which is printed with overrides at the end.
    noise = ("💡 Tip", "TPU available", "data: ", "Loading `train_dataloader` to estimate")
    log.addFilter(lambda record: not record.getMessage().startswith(noise))
    for name in ("gcsfs", "botocore", "aiobotocore"):  # at INFO: features that are on, credentials found
        logging.getLogger(name).setLevel(logging.WARNING)
    for text in _NOISE:
        warnings.filterwarnings("ignore", message=text)
    if not is_first_rank():
        warnings.simplefilter("ignore")
        for text in (r"rank \d+: ", ".* on rank .* cannot be decoded"):  # its own images
            warnings.filterwarnings("default", message=text)
        logging.disable(logging.WARNING)


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path relative to where the command was given, absolute if that is shorter; a URL as it is."""
    if "://" in os.fspath(path):
        return os.fspath(path)
    return min(os.path.relpath(path, _start()), str(Path(path).absolute()), key=len)


def _start() -> str:
    """Return where the command was given: hydra.job.chdir=true goes to the folder of the run."""
    return get_original_cwd() if HydraConfig.initialized() else str(Path.cwd())


def summary_of(
    trainer: lightning.Trainer, callbacks: Mapping[str, object], arguments: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the lines at the end of a training: profile, advice, how to go on, what was measured.

    arguments: of the command line, as overrides.
    """
    yield from _profile(getattr(trainer, "profiler", None))
    measured = [f"{trainer.global_step} step{'s' * (trainer.global_step != 1)}"]
    for callback in callbacks.values():
        if isinstance(callback, tarpeg.DataStallMonitor):
            if callback.images_per_second:  # 0 if no step was measured
                measured.append(f"{callback.images_per_second:.0f} images/s")
                measured.append(f"{callback.wait_share:.0%} of the time waiting for data")
            if callback.advice:  # empty if nothing was trained, or only in processes that ended
                yield f"data: {in_overrides(callback.advice)}"
            if callback.table.count("\n") > 1:  # of one rank the last line says the same
                yield callback.table
    for name in ("accuracy", "map", "mae", "miou"):
        if f"val/{name}" in trainer.callback_metrics:
            measured.append(f"validation {name} {trainer.callback_metrics[f'val/{name}']:.3f}")
    if resume := resume_hint(trainer, arguments):
        yield resume
    yield f"trained: {', '.join(measured)}"


def resume_hint(
    trainer: lightning.Trainer,
    arguments: Sequence[str],
    saved: str | None = None,
    otherwise: str | None = None,
) -> str:
    """Return the whole command that goes on with the training from its end; "" if there is no checkpoint.

    Args:
        trainer: of the run that ended.
        arguments: of its command line, as overrides: the data of a training belong to it.
        saved: path of the checkpoint that a run has saved where it was interrupted, "" for none; None for a
            run that was not interrupted.
        otherwise: the checkpoint from which this run started.
    """
    writers = [each for each in trainer.checkpoint_callbacks if getattr(each, "monitor", "") is None]
    written = next((str(getattr(each, "best_model_path", "")) for each in writers), "")
    last = saved or written or otherwise
    if not last:
        return ""
    reached = {}
    for name, count in (("max_epochs", trainer.current_epoch), ("max_steps", trainer.global_step)):
        limit = getattr(trainer, name) or -1
        if 0 < limit <= count:
            reached[name] = limit
    new = {f"trainer.{name}": 2 * limit for name, limit in reached.items()}
    given = {name.lstrip("+~"): name for name in (each.partition("=")[0] for each in arguments)}
    kept = (each for each in arguments if each.partition("=")[0].lstrip("+~") not in {*new, *_OF_ONE_RUN})
    shown = (f"{each.partition('=')[0]}=..." if SECRET.search(each) else each for each in kept)
    words = [*_options(sys.argv[1:]), *map(shlex.quote, shown), quoted("ckpt_path", shown_path(last))]
    # As they were given: with the "+" of what is not in the file of the settings.
    words += [f"{given.get(name, name)}={limit}" for name, limit in new.items()]
    limits = " and ".join(f"{name}={limit}" for name, limit in reached.items())
    why = f" ({limits} is reached)" if reached else ""
    place = "the last checkpoint" if saved == "" else "here"
    script = os.path.relpath(Path(_start(), sys.argv[0]), _start())
    return f"to go on from {place}{why}: {_launcher()} {script} {' '.join(words)}"


def _options(given: Sequence[str]) -> Iterator[str]:
    """Yield Hydra's options of a command line that say where its settings are."""
    names = ("--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
    for option, value in zip(given, [*given[1:], ""], strict=False):
        if option in names:
            yield from (option, shlex.quote(value))
        elif option.partition("=")[0] in names:
            yield shlex.quote(option)


def _launcher() -> str:
    """Return the command that has started this process, up to the script."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return "python"
    nodes, here = (int(os.environ.get(name, 1)) for name in ("GROUP_WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    return f"torchrun{f' --nnodes {nodes}' * (nodes > 1)} --nproc-per-node {here}"


def _profile(profiler: Profiler | None) -> Iterator[str]:
    """Yield the place of a profile, if there is one."""
    folder = getattr(profiler, "dirpath", None)
    if not folder or isinstance(profiler, PassThroughProfiler):
        return
    if not isinstance(profiler, PyTorchProfiler):
        yield f"profile: {folder}"
    elif any(Path(folder).glob("*.pt.trace.json")):
        yield f"profile: {folder} (traces open in https://ui.perfetto.dev or TensorBoard)"
    else:
        yield f"profile: {folder} (too few steps for a trace)"

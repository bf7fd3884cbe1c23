"""Checks before a run: settings that do not fit together, and checkpoints that do not fit the model."""

from __future__ import annotations

import argparse
import inspect
import os
import pathlib
import pickle
import tempfile
import typing
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from tarpeg.errors import ShardError
from tarpeg.files import open_regular
from tarpeg.shards.urls import file_system, shard_errors
from torch import nn

# Classes of plain values that checkpoints of Lightning hold, beside those that torch reads with weights_only.
torch.serialization.add_safe_globals([argparse.Namespace, pathlib.PurePosixPath, pathlib.PosixPath])


_URLS: dict[str, str] = {}
"""Of copies of checkpoints, for messages."""


class ConfigError(ValueError):
    """Settings that do not fit together. The message has their names on the command line."""


def check_trainer(config: Mapping[str, Any]) -> None:
    """Raise ConfigError for a word in place of a number: Lightning asserts, or fails in the first step."""
    parameters = inspect.signature(lightning.Trainer).parameters
    for name, value in config.items():
        kind = parameters[name].annotation if name in parameters else None
        kinds = typing.get_args(kind) or (kind,)
        if isinstance(value, str) and str not in kinds and {int, float} & set(kinds):
            raise ConfigError(f"trainer.{name}={value} must be a number")
    accelerator = config.get("accelerator")
    has_gpu = torch.cuda.is_available() or (accelerator == "gpu" and torch.backends.mps.is_available())
    if accelerator in ("gpu", "cuda") and not has_gpu:
        raise ConfigError(
            f"trainer.accelerator={accelerator}, and torch finds no GPU here: give trainer.accelerator=cpu "
            "(trainer=cpu), or see `python tools/doctor.py`"
        )
    devices, nodes = config.get("devices"), config.get("num_nodes", 1)
    if isinstance(devices, int) and isinstance(nodes, int) and devices * nodes > 1:
        check_processes(devices * nodes)


def check_arrays(data: Any, path: str = "data") -> None:
    """Raise ConfigError for files of ``subset`` and ``weights``, in any split, that cannot be read."""
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if name in ("subset", "weights") and isinstance(value, str):
            try:
                open_regular(value).close()  # a FIFO would wait for ever
                np.load(value, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError, EOFError) as error:
                raise ConfigError(
                    f"{path}.{name}={value} cannot be read as a .npy file: {error}. Give the path of "
                    "an array that numpy.save wrote"
                ) from error
        else:
            check_arrays(value, f"{path}.{name}")


def check_processes(count: int) -> None:
    """Raise ConfigError if torchrun has started another number of processes than the trainer has.

    Of a trainer of one process each would train a network of its own, and all would write the same files.
    """
    started, here = (int(os.environ.get(name, 1)) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if "TORCHELASTIC_RUN_ID" in os.environ and started > 1 and started != count:
        nodes = f" +trainer.num_nodes={started // here}" * (started > here)
        alone = ", so that each would train a network of its own" * (count == 1)
        raise ConfigError(
            f"torchrun has started {started} processes, and this trainer uses {count}{alone}: give "
            f"trainer=ddp trainer.devices={here}{nodes}"
        )


def check_run(config: DictConfig, model: lightning.LightningModule, has_val: bool) -> None:
    """Raise ConfigError if this run cannot do what ``predict`` or ``validate`` asks for."""
    if config.predict is None:  # which reads no other split
        check_arrays(OmegaConf.to_container(config.data, resolve=True, throw_on_missing=False))
    for asked, use in ((config.predict, "predict="), (config.validate, "validate=true")):
        if asked and config.ckpt_path is None:
            raise ConfigError(f"{use} needs a checkpoint: give ckpt_path=...")
    if config.predict is not None and type(model).predict_step is lightning.LightningModule.predict_step:
        raise ConfigError(
            f"predict= needs predict_step(), which {type(model).__name__} does not have: write one, or a "
            "loop of your own over a loader with keys=True (docs/targets.md)"
        )
    if config.ckpt_path is not None and "://" not in config.ckpt_path:
        is_fit = config.predict is None and not config.validate
        epochs = config.trainer.get("max_epochs") if is_fit else None
        check_checkpoint(config.ckpt_path, model, epochs, trusted=config.trust_ckpt)
    elif config.ckpt_path is not None:
        _check_remote(config.ckpt_path)
    if config.validate and not has_val:
        raise ConfigError("validate=true measures on data.val, which is null: give data.val.shards=...")


def explain_remote(path: str | None, model: lightning.LightningModule, *, trusted: bool) -> None:
    """Copy a checkpoint behind a URL, and raise ConfigError if it is the reason that a training failed."""
    if path is not None and "://" in path and not path.startswith("registry"):
        with tempfile.TemporaryDirectory() as folder:
            check_checkpoint(copied_checkpoint(path, folder), model, trusted=trusted)


def _named(path: str) -> str:
    return f"ckpt_path={_URLS.get(path, path)}"


def _check_remote(url: str) -> None:
    """Raise ConfigError for a checkpoint behind a URL that is not there, or cannot be reached."""
    try:
        system, place = file_system(url)
        with shard_errors(url, "Check the URL and the credentials, or copy it and give the local file."):
            system.info(place)
    except ShardError as error:
        raise ConfigError(f"ckpt_path={url}: {error}") from error


def copied_checkpoint(url: str, folder: str) -> str:
    """Copy a checkpoint behind a URL to a folder, and return its path. Raises ConfigError."""
    _check_remote(url)
    path = str(Path(folder) / "remote.ckpt")
    try:
        system, place = file_system(url)
        with shard_errors(url, "Check the URL and the credentials, or copy it and give the local file."):
            system.get_file(place, path)
    except ShardError as error:
        raise ConfigError(f"ckpt_path={url}: {error}") from error
    _URLS[path] = url
    return path


def check_checkpoint(
    path: str, model: nn.Module, max_epochs: int | None = None, *, trusted: bool = False
) -> None:
    """Raise ConfigError for a file that Lightning cannot load into ``model``.

    Args:
        path: of a file, or a word that Lightning replaces by a path: these are not checked.
        model: the tensors of the checkpoint must have the names and shapes of its tensors.
        max_epochs: of the training that goes on from the checkpoint; None or -1 for no limit.
        trusted: read objects of any class, which runs code that the file names.
    """
    if not path:
        raise ConfigError("ckpt_path= is empty: give a file, or leave it out")
    if path in ("last", "best", "hpc") or path.startswith("registry"):
        return
    if not Path(path).is_file():
        found = sorted(str(each) for each in Path(path).rglob("*.ckpt"))
        hint = f"a folder; give a file, such as {found[-1]}" if found else "not a file"
        raise ConfigError(f"{_named(path)} is {hint}")
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"{_named(path)} is not a checkpoint of Lightning, or not a whole one")
    checkpoint = read_checkpoint(path, trusted=trusted)
    try:
        saved = _shapes(checkpoint["state_dict"])
    except (KeyError, TypeError, AttributeError) as error:
        raise _incomplete(path, error) from error
    own = _shapes(model.state_dict())
    if other := sorted(name for name in {*saved, *own} if saved.get(name) != own.get(name)):
        name = other[0]
        raise ConfigError(
            f"{_named(path)} is of another model: {len(other)} of its tensors differ, such as {name}, "
            f"{_shown(saved.get(name))} there and {_shown(own.get(name))} here. Give the same model=..."
        )
    trained = _epochs_of(checkpoint)
    if max_epochs is not None and 0 <= max_epochs < trained:
        raise ConfigError(
            f"{_named(path)} was trained for {trained} epochs, and trainer.max_epochs is {max_epochs}: "
            "give more, trainer.max_epochs=..."
        )


def read_checkpoint(path: str, *, trusted: bool = False) -> Any:
    """Read a checkpoint without its tensors. Raise ConfigError if it is none, or needs classes to be trusted.

    A pickle may call any function: until it is trusted, only plain values and tensors are read.
    """
    try:
        open_regular(path).close()
        return torch.load(path, map_location="meta", weights_only=not trusted, mmap=True)
    except (AttributeError, ImportError) as error:
        raise ConfigError(
            f"{_named(path)} has an object of a class that is missing here, or has moved: {error}. Load it "
            "with the version that saved it, or go on from its state_dict alone"
        ) from error
    except pickle.UnpicklingError as error:
        if not trusted:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            reason = str(error).partition("WeightsUnpickler error:")[2].strip().partition("\n")[0]
            found = ", ".join(sorted(names)) or reason
            raise ConfigError(
                f"{_named(path)} has more than tensors and numbers: {found}. Reading "
                "that runs code which the file chooses. If you trust whoever wrote it, give trust_ckpt=true; "
                "otherwise go on from its state_dict alone"
            ) from error
        raise _incomplete(path, error) from error
    except (RuntimeError, EOFError, KeyError, TypeError) as error:
        raise _incomplete(path, error) from error


def _incomplete(path: str, error: Exception) -> ConfigError:
    return ConfigError(f"{_named(path)} is not a complete checkpoint of Lightning: {error!r}")


def _shapes(state: Mapping[str, Any]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in state.items() if isinstance(value, torch.Tensor)}


def _shown(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _epochs_of(checkpoint: Mapping[str, Any]) -> int:
    """Return the number of trained epochs, which Lightning compares with max_epochs; 0 if it is unknown."""
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    return int(loop.get("epoch_progress", {}).get("current", {}).get("processed", 0))

"""``predict=`` of ``train.py``: the data of such a run, and its table."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import lightning
import tarpeg
import torch
from omegaconf import DictConfig, ListConfig, OmegaConf
from tarpeg.errors import ResumeError
from tarpeg.shards.urls import is_url, local_or_url

from .checks import ConfigError, read_checkpoint

_OF_DATA = re.compile(r"[+~]*(data|augment|experiment)\b")
_OF_VAL = ("_target_", "crop", "transform", "interpolation", "fidelity", "channels")
"""Settings that the predicted images share with those of the validation."""

_COLUMNS = ("key", "class", "probability")


def data_to_predict(config: DictConfig, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return arguments of the data module for ``predict=``: that split alone, without labels; {} without it.

    Images are prepared as the checkpoint's validation had them, unless the command line (``arguments``, as
    overrides) is about the data: the data module compares these with the checkpoint.

    Raises:
        ConfigError: if ``predict`` is not a folder, a glob or shards, or ``data.val`` has no crop.
    """
    if config.predict is None:
        return {}
    if not isinstance(config.predict, (str, ListConfig)) or not config.predict:
        raise ConfigError(f"predict={config.predict!r} must be a folder of images, a glob or shards")
    for given in [config.predict] if isinstance(config.predict, str) else config.predict:
        if is_url(local_or_url(str(given))):
            raise ConfigError(
                f"predict={given} is not local, and a prediction needs all images by number: copy them to a "
                "local folder, such as by aws s3 sync, and give that"
            )
    if config.validate:
        raise ConfigError("validate=true and predict= are two runs: give one of them")
    others = dict.fromkeys(("train", "val", "test", "prepare"))
    known = None if any(map(_OF_DATA.match, arguments)) else _known(config)
    if known is not None:
        return {**others, "predict": known.split(config.predict, target=None), "augment": known.augment()}
    val = config.data.get("val")
    while val is not None and "_target_" not in val:  # of several, the first
        val = next(iter(val.values() if isinstance(val, DictConfig) else val))
    if val is None:
        raise ConfigError("predict= needs the crop of data.val, which is null")
    split = {}
    for name in _OF_VAL:
        if name in val:
            value = val[name]
            is_nested = OmegaConf.is_config(value)
            split[name] = OmegaConf.to_container(value, resolve=True) if is_nested else value
    return {**others, "predict": {**split, "shards": config.predict, "target": None}}


def _known(config: DictConfig) -> tarpeg.Preprocessing | None:
    """Return how the checkpoint's validation prepares images; None if it does not say it in plain values."""
    path = config.get("ckpt_path")
    if not path or not Path(path).is_file():
        return None
    try:
        checkpoint = read_checkpoint(path, trusted=config.trust_ckpt)
        return tarpeg.preprocessing(checkpoint) if isinstance(checkpoint, Mapping) else None
    except (ConfigError, ResumeError):  # of a file that is no checkpoint, check_run reports the reason
        return None


class Predictions(lightning.Callback):
    """Write what ``predict_step`` returns, on all ranks, to a table (UTF-8) in the order of the images.

    The table is renamed when it is complete.

    Args:
        path: of the table, a CSV file with the columns key, class and probability, or those of the model.

    Attributes:
        rows: number of rows that were written, of all ranks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        self._file: TextIO | None = None

    def on_predict_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Open the table under a temporary name."""
        if trainer.is_global_zero:
            # Names of files may have bytes that are not UTF-8.
            part = self.path.with_suffix(".part")
            self._file = part.open("w", newline="", encoding="utf-8", errors="surrogateescape")
            csv.writer(self._file).writerow(getattr(pl_module, "columns", _COLUMNS))

    def on_predict_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, outputs: Any, *_: Any
    ) -> None:
        """Append the rows of all ranks."""
        ranks = [outputs]
        if trainer.world_size > 1:
            ranks *= trainer.world_size
            torch.distributed.all_gather_object(ranks, outputs)
        self.rows += sum(map(len, ranks))
        if self._file is not None:
            for rows in ranks:
                csv.writer(self._file).writerows(map(_shown, rows))

    def on_exception(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, exception: BaseException
    ) -> None:
        """Delete the part of a run that failed, or was interrupted."""
        if self._file is not None:
            self._file.close()
            self.path.with_suffix(".part").unlink(missing_ok=True)

    def on_predict_end(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Rename the complete table."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self.path.with_suffix(".part").replace(self.path)


def _shown(row: Sequence[Any]) -> list[Any]:
    return [_number(each) if isinstance(each, float) else each for each in row]


def _number(value: float) -> str:
    return f"{value:.6f}" if value == 0 or abs(value) >= 0.01 else f"{value:.6g}"

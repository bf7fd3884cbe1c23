"""Train from the composed configuration. ``python train.py --help`` lists the groups.

``-v`` prints first what the data module does natively and what in Python.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "datamodules"))
# OpenMP's threads would spin while they wait, on cores that the workers need: 5 times slower on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hydra
import lightning
import tarpeg
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException
from omegaconf import DictConfig, OmegaConf
from tarpeg_hydra.hints import check_arguments, check_settings, check_truths
from tarpeg_hydra.overrides import one_line_errors

from training.callbacks import DataSummary, Interrupt, KeepOthers, make_callbacks, note_on
from training.checkpoints import KeepArguments, with_those_of_checkpoint
from training.checks import ConfigError, check_processes, check_run, check_trainer, explain_remote
from training.classifier import Classifier
from training.predictions import Predictions, data_to_predict
from training.reports import is_first_rank, resume_hint, show, shown_path, silence, summary_of


@hydra.main(config_path="conf", config_name="train", version_base="1.3")
def main(config: DictConfig) -> float | None:
    """Fit, validate or predict; if a setting or a file is wrong, print one line with its name instead."""
    silence()
    with one_line_errors("train", ConfigError, MisconfigurationException):
        return run(config)


def run(config: DictConfig) -> float | None:
    """Make everything that the configuration describes, then fit, validate or predict.

    Returns the best score of a training, for Hydra's sweepers: that of the first ModelCheckpoint with one.
    """
    check_truths("train", config)
    if type(config.seed) is not int or not 0 <= config.seed < 1 << 32:
        raise ConfigError(f"seed={config.seed} must be an integer in 0..{(1 << 32) - 1}")
    lightning.seed_everything(config.seed, verbose=False)
    data = make_data(config)
    model = make_model(config.model)
    check_trainer(config.trainer)
    has_val = any(split for name, split in data.splits.items() if name.startswith("val"))
    check_run(config, model, has_val)

    callbacks = make_callbacks(config.callbacks or {}, has_val or config.predict is not None)
    out = Path(HydraConfig.get().runtime.output_dir)
    summary, interrupt = DataSummary(note_on(config.data)), Interrupt(out / "checkpoints")
    table = Predictions(out / "predictions.csv")
    arguments = command_line()
    trainer = instantiate(
        config.trainer,
        logger=[instantiate(each) for each in (config.logger or {}).values() if each] or False,
        callbacks=[*callbacks.values(), KeepArguments(arguments), KeepOthers(), summary, interrupt, table],
        profiler=instantiate(config.profiler) or None,
    )

    check_processes(trainer.world_size)
    checkpoint = {"ckpt_path": config.ckpt_path, "weights_only": not config.trust_ckpt}
    if config.predict is not None:
        trainer.predict(model, datamodule=data, return_predictions=False, **checkpoint)
        if trainer.is_global_zero:
            images = len(data.samples("predict"))
            show(f"predicted: {table.rows} of {images} images, in {shown_path(table.path)}")
    elif config.validate:
        trainer.validate(model, datamodule=data, **checkpoint)
    else:
        fit(trainer, model, data, checkpoint, interrupt, arguments)
        if trainer.is_global_zero:
            for line in summary_of(trainer, callbacks, arguments):
                show(line)
        scores = (getattr(callback, "best_model_score", None) for callback in callbacks.values())
        return next((float(score) for score in scores if score is not None), None)
    return None


def command_line() -> list[str]:
    """Return the overrides of this run; relative interpolations are those of their place, not of a list."""
    given: Any = HydraConfig.get().overrides.task
    texts: Any = OmegaConf.to_container(given, resolve=False)
    return [text if "${." in text else given[place] for place, text in enumerate(texts)]


def make_data(config: DictConfig) -> tarpeg.ShardDataModule:
    """Return the data module; with ``verbose``, print the plan of its splits."""
    augment = instantiate(config.augment) if config.get("augment") else None
    changes = {"augment": augment, **data_to_predict(config, command_line())}
    train = config.data.get("train")
    if config.validate and train is not None and OmegaConf.is_missing(train, "shards"):
        changes["train"] = None  # only those of val are read
    data: tarpeg.ShardDataModule = instantiate(config.data, **changes)
    if config.verbose and is_first_rank():
        for name, split in data.splits.items():
            if split is not None:
                show(f"{name}:\n{split.plan()}")
    return data


def make_model(config: DictConfig) -> lightning.LightningModule:
    """Return the LightningModule of a configuration with ``_target_``, otherwise a Classifier."""
    if "_target_" in config:
        model: lightning.LightningModule = instantiate(config)
        return model
    if config.net.num_classes < 1:
        raise ConfigError(f"model.net.num_classes={config.net.num_classes} must be at least 1")
    net, optimizer, criterion = (instantiate(config.get(name)) for name in ("net", "optimizer", "loss"))
    rest = {name: config.get(name) for name in ("no_decay", "schedule")}
    return Classifier(net, optimizer, config.net.num_classes, criterion, **rest)


def fit(
    trainer: lightning.Trainer,
    model: lightning.LightningModule,
    data: tarpeg.ShardDataModule,
    checkpoint: dict[str, Any],
    interrupt: Interrupt,
    arguments: Sequence[str],
) -> None:
    """Train; after Ctrl-C or SIGTERM print how to go on, and exit as a program does that it ends."""
    try:
        trainer.fit(model, datamodule=data, **checkpoint)
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError) as error:
        if trainer.global_step == 0 and not isinstance(error, tarpeg.ShardError):  # it has not begun
            path, trusted = checkpoint["ckpt_path"], not checkpoint["weights_only"]
            explain_remote(path, model, trusted=trusted)
        raise
    except SystemExit as end:  # Lightning's
        if trainer.is_global_zero:
            resume = resume_hint(trainer, arguments, interrupt.saved, checkpoint["ckpt_path"])
            show(
                f"interrupted; {resume or 'there is no checkpoint yet: one is written after each validation'}"
            )
        is_terminated = isinstance(end, SIGTERMException) or interrupt.number == signal.SIGTERM
        raise SystemExit(143 if is_terminated else 130) from None


if __name__ == "__main__":
    sys.argv[1:] = ["verbose=true" if each in ("-v", "--verbose") else each for each in sys.argv[1:]]
    check_arguments("train", sys.argv[1:])
    with one_line_errors("train", ConfigError):
        sys.argv[1:] = with_those_of_checkpoint(sys.argv[1:])
    check_settings("train", sys.argv[1:])
    main()

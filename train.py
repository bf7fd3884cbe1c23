"""Train a classifier from the composed configuration. ``python train.py --help`` lists the groups.

``-v`` prints first what the data module does natively and what in Python.
"""

from __future__ import annotations

import csv
import inspect
import logging
import os
import pickle
import re
import signal
import sys
import threading
import typing
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "datamodules"))
# OpenMP's threads would spin while they wait, on cores that the workers need: 5 times slower on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hydra
import lightning
import tarpeg
import torch
import torchmetrics
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from lightning.pytorch.profilers import PyTorchProfiler
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from rich.console import Console
from tarpeg.errors import ResumeError
from tarpeg_hydra.hints import check_arguments, check_settings, in_overrides, with_overrides
from torch import Tensor, nn
from torch.optim import lr_scheduler


class Classifier(lightning.LightningModule):
    """Loss and accuracy around any classifier.

    ``criterion``: loss of scores and labels, or shares of labels if they are mixed; validation always
    measures cross entropy. ``no_decay``: parameters without weight decay, "norms" (of normalisation layers,
    as in torchvision's references) or "vectors" (these, biases, and ``no_weight_decay()`` of the network, as
    in timm). ``schedule``: per epoch, a linear warm-up of ``warmup`` epochs from ``start``, then a cosine to
    ``end``, both as fractions of the optimiser's learning rate.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        classes: int,
        criterion: nn.Module | None = None,
        no_decay: str | None = None,
        schedule: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if no_decay not in (None, "norms", "vectors"):
            raise ConfigError(f"model.no_decay={no_decay} must be norms, vectors or null")
        if schedule is not None and set(schedule) != {"warmup", "start", "end"}:
            raise ConfigError(f"model.schedule={dict(schedule)} must have warmup, start and end")
        self.net = net
        self.optimizer = optimizer
        self.num_classes = classes
        self.criterion = criterion or nn.CrossEntropyLoss()
        self.no_decay, self.schedule = no_decay, schedule
        self.accuracy = torchmetrics.classification.MulticlassAccuracy(classes, average="micro")
        self.loss = torchmetrics.MeanMetric()

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def on_before_batch_transfer(self, batch: tarpeg.Batch, _: int) -> tarpeg.Batch:
        if self.trainer.predicting:  # without labels
            return batch
        low, high = (int(bound) for bound in batch[1].aminmax())
        if low < 0 or high >= self.num_classes:  # on a GPU this would be an assertion without a message
            text = f"need model.net.num_classes={high + 1} or more, and it is {self.num_classes}"
            if low < 0:
                hint = ": -1 is an image without a label; data=folder takes a folder of images" * (low == -1)
                text = f"do not fit model.net.num_classes={self.num_classes}{hint}"
            raise ConfigError(f"labels {low}..{high} {text}")
        return batch

    def training_step(self, batch: tarpeg.Batch, _: int) -> Tensor:
        images, labels = batch
        loss = self.criterion(self(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tarpeg.Batch, _: int, dataloader_idx: int = 0) -> None:
        images, labels = batch
        scores = self(images)
        self.accuracy.update(scores, labels)
        self.loss.update(nn.functional.cross_entropy(scores, labels), len(labels))
        sets = [name for name in self.trainer.datamodule.splits if name.startswith("val/")]
        if sets:  # several: each has its own accuracy, such as val/clean/accuracy
            right = (scores.argmax(1) == labels).float().mean()
            options = {"batch_size": len(labels), "add_dataloader_idx": False, "sync_dist": True}
            self.log(f"{sets[dataloader_idx]}/accuracy", right, **options)

    def on_validation_epoch_end(self) -> None:
        """Log loss and accuracy over all validation sets."""
        self.log("val/loss", self.loss)
        self.log("val/accuracy", self.accuracy, prog_bar=True)

    def predict_step(self, batch: tarpeg.KeyedBatch, _: int) -> list[tuple[str, str | int, float]]:
        """Return key, class and probability of each image; the class is a number if it has no name."""
        if not batch.key:  # none could be decoded
            return []
        found = self(batch.image).float().softmax(1).max(1)
        named = dict(enumerate(self.trainer.datamodule.classes or []))  # those of the checkpoint
        classes = (named.get(label, label) for label in found.indices.tolist())
        return list(zip(batch.key, classes, found.values.tolist(), strict=True))

    def configure_optimizers(self) -> dict[str, Any]:
        free = set(_without_decay(self.net, self.no_decay))
        parts = [
            [part for part in self.parameters() if (part in free) == is_free] for is_free in (False, True)
        ]
        groups = [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}]
        try:
            optimizer = self.optimizer([group for group in groups if group["params"]])
        except (TypeError, ValueError) as error:
            given = getattr(self.optimizer, "keywords", {})
            words = "".join(
                f"{key}={value} is a word: " for key, value in given.items() if isinstance(value, str)
            )
            raise ConfigError(f"model.optimizer: {words}{error}") from error
        if self.schedule is None:
            return {"optimizer": optimizer}
        epochs, warmup = self.trainer.max_epochs, int(self.schedule["warmup"])
        if not epochs or epochs < 1:
            raise ConfigError("model.schedule needs a number of epochs: give trainer.max_epochs=...")
        lr, end = optimizer.param_groups[0]["lr"], self.schedule["end"]
        decay = lr_scheduler.CosineAnnealingLR(optimizer, max(1, epochs - warmup), eta_min=end * lr)
        if not warmup:
            return {"optimizer": optimizer, "lr_scheduler": decay}
        rise = lr_scheduler.LinearLR(optimizer, self.schedule["start"], total_iters=warmup)
        both = lr_scheduler.SequentialLR(optimizer, [rise, decay], [warmup])
        return {"optimizer": optimizer, "lr_scheduler": both}


def _without_decay(net: nn.Module, kind: str | None) -> Iterator[nn.Parameter]:
    """Parameters that weight decay leaves alone, see ``Classifier``."""
    norms = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    named = getattr(net, "no_weight_decay", set)() if kind == "vectors" else set()
    for prefix, module in net.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            is_vector = kind == "vectors" and (parameter.ndim < 2 or name in named)
            if is_vector or (kind == "norms" and isinstance(module, norms)):
                yield parameter


class ConfigError(ValueError):
    """Settings that do not fit together."""


class Summary(lightning.Callback):
    """Prints at the start what is trained on. ``note``: what to add."""

    def __init__(self, note: str = "") -> None:
        self.note = note

    def setup(self, trainer: lightning.Trainer, _: lightning.LightningModule, stage: str) -> None:
        """Print it after the data module's own setup, which raises if shards are missing."""
        if trainer.is_global_zero and stage == "fit":
            data = trainer.datamodule
            splits = {name: split for name, split in data.splits.items() if split is not None}
            parts = [
                f"{name}: {split.shards}"
                + ("" if split.streaming else f" ({len(data.samples(name))} images)")
                for name, split in splits.items()
                if name.startswith(("train", "val"))
            ]
            parts += [f"{data.num_classes} classes"] * bool(data.num_classes)
            line = f"{'; '.join(parts)}{self.note}"
            Console().print(line, highlight=False, markup=False, soft_wrap=True)


class Predictions(lightning.Callback):
    """Writes what ``predict_step`` returns, on all ranks, to a table (UTF-8) in the order of the images.

    ``rows``: of all ranks. The table gets its name when it is complete.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, 0

    def on_predict_start(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        if trainer.is_global_zero:
            # Names of files may have bytes that are not UTF-8.
            part = self.path.with_suffix(".part")
            self.file = part.open("w", newline="", encoding="utf-8", errors="surrogateescape")
            csv.writer(self.file).writerow(("key", "class", "probability"))

    def on_predict_batch_end(
        self, trainer: lightning.Trainer, model: lightning.LightningModule, rows: Any, *_: Any
    ) -> None:
        ranks = [rows]
        if trainer.world_size > 1:
            ranks *= trainer.world_size
            torch.distributed.all_gather_object(ranks, rows)
        self.rows += sum(map(len, ranks))
        if trainer.is_global_zero:
            for rows in ranks:
                csv.writer(self.file).writerows((key, name, f"{share:.6f}") for key, name, share in rows)

    def on_predict_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        if trainer.is_global_zero:
            self.file.close()
            self.path.with_suffix(".part").replace(self.path)


class Interrupt(lightning.Callback):
    """Ctrl-C ends the run after the current batch, with a checkpoint of exactly that place.

    Several ranks end together, after at most ``log_every_n_steps`` batches. During a validation it ends after
    it. A second Ctrl-C ends the run at once, without a checkpoint.
    ``saved``: path of the checkpoint, "" if there is none.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "interrupted.ckpt"
        self.saved = ""
        self.is_asked = False

    def on_train_start(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._ask)

    def on_train_end(self, *_: Any) -> None:
        if signal.getsignal(signal.SIGINT) == self._ask:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_train_batch_end(self, trainer: lightning.Trainer, *given: Any) -> None:
        # Ranks ask each other only now and then: each time they wait for their GPUs. After the last batch of
        # an epoch, on_train_epoch_end does.
        every = 1 if trainer.world_size == 1 else trainer.log_every_n_steps or 50
        if (given[-1] + 1) % every == 0 and given[-1] + 1 < trainer.num_training_batches:
            self._end_if_asked(trainer)

    def on_train_epoch_end(self, trainer: lightning.Trainer, _: lightning.LightningModule) -> None:
        self._end_if_asked(trainer)

    def _ask(self, *_: Any) -> None:
        if self.is_asked:
            raise KeyboardInterrupt
        self.is_asked = True
        if not rank_zero_only.rank:  # print() might be interrupted within itself
            os.write(2, b"\nCtrl-C: ends after this batch or validation; once more: at once\n")

    def _end_if_asked(self, trainer: lightning.Trainer) -> None:
        """Save and end if any rank was interrupted, on all ranks at the same step."""
        if trainer.strategy.reduce_boolean_decision(self.is_asked, all=False):
            self.is_asked = True
            trainer.save_checkpoint(self.path, weights_only=False)
            self.saved = str(self.path)
            raise KeyboardInterrupt


@hydra.main(config_path="conf", config_name="train", version_base="1.3")
def main(config: DictConfig) -> None:
    """Fit, then print a summary; if a setting or a file is wrong, print one line with its name instead."""
    _quiet()
    try:
        _fit(config)
    except InstantiationException as error:
        key, cause = re.search(r"full_key: (\S+)", str(error)), error.__cause__ or error
        kind = "" if isinstance(cause, (ValueError, ImportError)) else f"{type(cause).__name__}: "
        raise SystemExit(f"train: {f'{key[1]}: ' if key else ''}{kind}{with_overrides(cause)}") from None
    except MissingMandatoryValue as error:
        raise SystemExit(f"train: {error.full_key} is not set: give {error.full_key}=...") from None
    except (
        tarpeg.ShardError,
        tarpeg.DecodeError,
        tarpeg.BuildError,
        ResumeError,
        ConfigError,
        MisconfigurationException,
    ) as error:
        raise SystemExit(f"train: {with_overrides(error)}") from None
    except KeyboardInterrupt:
        Console(stderr=True).print("train: interrupted", style="none")
        raise SystemExit(130) from None


def _fit(config: DictConfig) -> None:
    lightning.seed_everything(config.seed, verbose=False)
    augment = instantiate(config.augment) if config.get("augment") else None
    data = instantiate(config.data, augment=augment, **_to_predict(config))
    if config.verbose and not rank_zero_only.rank:
        for name, split in data.splits.items():
            if split is not None:
                Console().print(f"{name}:\n{split.plan()}", highlight=False, markup=False, soft_wrap=True)
    model = _model(config.model)
    _check_trainer(config.trainer)
    for asked, use in ((config.predict, "predict="), (config.validate, "validate=true")):
        if asked and config.ckpt_path is None:
            raise ConfigError(f"{use} needs a checkpoint: give ckpt_path=...")
    if config.predict is not None and type(model).predict_step is lightning.LightningModule.predict_step:
        raise ConfigError(f"predict= needs predict_step(), which {type(model).__name__} does not have")
    if config.ckpt_path is not None and "://" not in config.ckpt_path:
        _check_checkpoint(config.ckpt_path, model)
    callbacks = {
        name: instantiate(callback) for name, callback in (config.callbacks or {}).items() if callback
    }
    has_val = any(split for name, split in data.splits.items() if name.startswith("val"))
    if config.validate and not has_val:
        raise ConfigError("validate=true measures on data.val, which is null: give data.val.shards=...")
    if not (has_val or config.predict is not None):  # nothing to monitor
        named = {name: str(getattr(each, "monitor", "")) for name, each in callbacks.items()}
        callbacks = {name: callbacks[name] for name in named if not named[name].startswith("val/")}
    out = Path(HydraConfig.get().runtime.output_dir)
    interrupt, table = Interrupt(out / "checkpoints"), Predictions(out / "predictions.csv")
    is_drawn = "tarpeg.SyntheticShards" in str(config.data.get("prepare"))
    note = ". Synthetic photographs; data=shards or data=folder for your own" * is_drawn
    trainer = instantiate(
        config.trainer,
        logger=[instantiate(logger) for logger in (config.logger or {}).values()] or False,
        callbacks=[*callbacks.values(), Summary(note), interrupt, table],
        profiler=instantiate(config.profiler) or None,
    )
    if config.predict is not None:
        trainer.predict(model, datamodule=data, ckpt_path=config.ckpt_path, return_predictions=False)
        if trainer.is_global_zero:
            count = len(data.samples("predict"))
            line = f"predicted: {table.rows} of {count} images, in {os.path.relpath(table.path)}"
            Console().print(line, highlight=False, markup=False, soft_wrap=True)
        return
    if config.validate:
        trainer.validate(model, datamodule=data, ckpt_path=config.ckpt_path)
        return
    try:
        trainer.fit(model, datamodule=data, ckpt_path=config.ckpt_path)
    except SystemExit:  # Lightning's end after Ctrl-C
        if trainer.is_global_zero:
            resume = _resume_hint(trainer, interrupt.saved, config.ckpt_path)
            resume = resume or "there is no checkpoint yet: one is written after each validation"
            Console().print(f"interrupted; {resume}", highlight=False, markup=False, soft_wrap=True)
        raise SystemExit(130) from None
    if trainer.is_global_zero:
        for line in _summary(trainer, callbacks, trainer.profiler.dirpath if config.profiler else None):
            Console().print(line, highlight=False, markup=False, soft_wrap=True)


def _to_predict(config: DictConfig) -> dict[str, Any]:
    """Arguments of the data module for predict=: that split alone, without training data or labels."""
    if config.predict is None:
        return {}
    if not isinstance(config.predict, (str, ListConfig)) or not config.predict:
        raise ConfigError(f"predict={config.predict!r} must be a folder of images, a glob or shards")
    if config.validate:
        raise ConfigError("validate=true and predict= are two runs: give one of them")
    val = config.data.get("val")
    while val is not None and "_target_" not in val:  # of several, the first
        val = next(iter(val.values() if isinstance(val, DictConfig) else val))
    if val is None:
        raise ConfigError("predict= needs the crop of data.val, which is null")
    names = ("_target_", "crop", "transform", "interpolation", "fidelity", "channels")
    given = {name: val[name] for name in names if name in val}
    split = {
        name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for name, value in given.items()
    }
    others = dict.fromkeys(("train", "val", "test", "prepare"))
    return {**others, "predict": {**split, "shards": config.predict, "target": None}}


def _model(config: DictConfig) -> lightning.LightningModule:
    """Return the LightningModule of a configuration with ``_target_``, otherwise a Classifier."""
    if "_target_" in config:
        return instantiate(config)
    if config.net.num_classes < 1:
        raise ConfigError(f"model.net.num_classes={config.net.num_classes} must be at least 1")
    net, optimizer, criterion = (instantiate(config.get(name)) for name in ("net", "optimizer", "loss"))
    rest = {name: config.get(name) for name in ("no_decay", "schedule")}
    return Classifier(net, optimizer, config.net.num_classes, criterion, **rest)


def _check_checkpoint(path: str, model: nn.Module) -> None:
    """Raise ConfigError for a path that Lightning cannot load, or a checkpoint of another model."""
    if not path:
        raise ConfigError("ckpt_path= is empty: give a file, or leave it out")
    if path in ("last", "best", "hpc") or path.startswith("registry"):
        return
    if not Path(path).is_file():
        found = sorted(str(each) for each in Path(path).rglob("*.ckpt"))
        hint = f"a folder; give a file, such as {found[-1]}" if found else "not a file"
        raise ConfigError(f"ckpt_path={path} is {hint}")
    if not zipfile.is_zipfile(path):
        raise ConfigError(f"ckpt_path={path} is not a checkpoint of Lightning, or not a whole one")
    try:
        saved = torch.load(path, map_location="meta", weights_only=False, mmap=True)["state_dict"]
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError) as error:
        raise ConfigError(f"ckpt_path={path} is not a complete checkpoint of Lightning: {error!r}") from error
    shapes, own = ({name: value.shape for name, value in d.items()} for d in (saved, model.state_dict()))
    if other := sorted(name for name in {*shapes, *own} if shapes.get(name) != own.get(name)):
        name = other[0]
        raise ConfigError(
            f"ckpt_path={path} is of another model: {len(other)} of its tensors differ, such as {name}, "
            f"{_shape(shapes.get(name))} there and {_shape(own.get(name))} here. Give the same model=..."
        )


def _check_trainer(config: DictConfig) -> None:
    """Raise ConfigError for a word in place of a number: Lightning asserts, or fails in the first step."""
    parameters = inspect.signature(lightning.Trainer).parameters
    for name, value in config.items():
        kind = parameters[name].annotation if name in parameters else None
        kinds = typing.get_args(kind) or (kind,)
        if isinstance(value, str) and str not in kinds and {int, float} & set(kinds):
            raise ConfigError(f"trainer.{name}={value} must be a number")


def _shape(shape: torch.Size | None) -> str:
    return "missing" if shape is None else str(list(shape))


def _summary(trainer: lightning.Trainer, callbacks: dict[str, object], profile: str | None) -> Iterator[str]:
    if profile:
        hint = "traces open in https://ui.perfetto.dev or TensorBoard"
        if not any(Path(profile).glob("*.pt.trace.json")):
            hint = "too few steps for a trace"
        is_traced = isinstance(trainer.profiler, PyTorchProfiler)
        yield f"profile: {profile}" + f" ({hint})" * is_traced
    parts = [f"{trainer.global_step} steps"]
    for callback in callbacks.values():
        if isinstance(callback, tarpeg.DataStallMonitor):
            if callback.images_per_second:  # 0 if no step was measured
                parts.append(f"{callback.images_per_second:.0f} images/s")
                parts.append(f"{callback.wait_share:.0%} of the time waiting for data")
            if callback.advice:  # empty if nothing was trained, or only in processes that ended
                yield f"data: {in_overrides(callback.advice)}"
    if "val/accuracy" in trainer.callback_metrics:
        parts.append(f"validation accuracy {trainer.callback_metrics['val/accuracy']:.3f}")
    if resume := _resume_hint(trainer):
        yield resume
    yield "trained: " + ", ".join(parts)


def _resume_hint(trainer: lightning.Trainer, saved: str = "", otherwise: str | None = None) -> str:
    writers = (each for each in trainer.checkpoint_callbacks if getattr(each, "monitor", "") is None)
    last = saved or next((each.best_model_path for each in writers), "") or otherwise
    if not last:
        return ""
    hint = f"to go on from here: ckpt_path={os.path.relpath(last)}"
    counts = {"max_epochs": trainer.current_epoch, "max_steps": trainer.global_step}
    limits = {name: getattr(trainer, name) for name in counts}
    reached = [name for name, count in counts.items() if 0 < (limits[name] or -1) <= count]
    if not reached:
        return hint
    more = " ".join(f"trainer.{name}={2 * limits[name]}" for name in reached)
    return f"{hint} {more} ({' and '.join(f'{name}={limits[name]}' for name in reached)} is reached)"


def _quiet() -> None:
    """Hide advertisements, and warnings that need no action here."""
    log = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    # "data: " is the monitor's verdict, which is printed with overrides at the end.
    log.addFilter(lambda record: not record.getMessage().startswith(("💡 Tip", "TPU available", "data: ")))
    for text in (
        ".*LeafSpec",
        "You have overridden `on_before_batch_transfer`",
        "Grad strides do not match",
        "The dirpath has changed from",  # ckpt_path=
        "The number of training batches .* smaller than the logging interval",  # a small data set
        "You defined a `valid",  # data.val=null
    ):
        warnings.filterwarnings("ignore", message=text)
    if rank_zero_only.rank:  # rank 0 prints the same
        warnings.simplefilter("ignore")
        warnings.filterwarnings("default", message=".* on rank .* cannot be decoded")  # its own images
        logging.disable(logging.WARNING)


if __name__ == "__main__":
    sys.argv[1:] = ["verbose=true" if each in ("-v", "--verbose") else each for each in sys.argv[1:]]
    check_arguments("train", sys.argv[1:])
    check_settings("train", sys.argv[1:])
    main()

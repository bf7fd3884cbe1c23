"""What ``train.py`` keeps of its command line in a checkpoint, and takes from it to validate or predict."""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from tarpeg.shards.urls import SECRET_OPTION

from .checks import ConfigError, copied_checkpoint, read_checkpoint

_KEY = "train.py"
_KEPT = ("data", "augment", "model", "experiment")
"""Groups of a training that its checkpoint belongs to; trainer, logger and so on are those of a run."""
_OF_ONE_RUN = re.compile(r"[+~]*data\.allow_other_data\b")
SECRET = re.compile(rf"://[^/]*@|https?://[^,]*\?|pipe:.*{SECRET_OPTION.pattern}", re.IGNORECASE)
"""A URL with a password or a signature, or a command with such an option."""
# A checkpoint that anyone may have written must run no code. So its settings are plain: names that
# choose no class (_target_), command (streams run curl and "pipe:") or file of weights; numbers, words, paths
# and URLs. Texts have neither "$" nor, but for a URL, ":", and braces with numbers alone: nothing is put
# together later.
_KEY_OF = re.compile(r"[A-Za-z0-9][\w-]*(\.[A-Za-z0-9][\w-]*)*")
_RISKY = re.compile("pipe|streaming|checkpoint|pretrained", re.IGNORECASE)
# Paths, URLs and fields of JSON: no commands, which have a colon or "|", and no interpolation.
_TEXT = re.compile(r"((https?|s3|gs|hf|file)://|json:)?([^:|${}\\<>`\x00-\x1f]|\{\d+\.\.\d+\})*")
_OPTION = re.compile(r"[\w-]*")
# A prediction reads no split of the training, and a validation not its train split, which may be a stream.
_STREAMING = re.compile(r"[+~]*data\.\w+\.streaming\b")
_TRAIN_STREAMING = re.compile(r"[+~]*data\.train\.streaming\b")
_OF_TRAIN_STREAM = re.compile(r"[+~]*data\.train\.(shards|streaming)\b")


class KeepArguments(lightning.Callback):
    """Keep the settings of data and model in every checkpoint: with it alone, one can validate and predict.

    What holds for one run is left out, and so are URLs with a password or a signature: others may get the
    checkpoint.

    Args:
        arguments: of the command line, as overrides.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        kept = (str(each) for each in arguments if _group_of(each) in _KEPT)
        self.arguments = [each for each in kept if not _OF_ONE_RUN.match(each) and not SECRET.search(each)]

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add them."""
        checkpoint[_KEY] = {"arguments": self.arguments}


def with_those_of_checkpoint(arguments: Sequence[str]) -> list[str]:
    """Return a command line, for ``validate=true`` and ``predict=`` with the settings of its checkpoint.

    What the command line gives replaces what the checkpoint has. One behind a URL is copied for this run.

    Raises:
        ConfigError: if the checkpoint's settings name code, and trust_ckpt=true is not given; or if it cannot
            be copied.
    """
    given = {key: value for key, _, value in (each.partition("=") for each in arguments)}
    path, trusted = given.get("ckpt_path", "").strip("'\""), given.get("trust_ckpt", "").lower() == "true"
    is_asked = "predict" in given or given.get("validate", "").lower() == "true"
    if not is_asked or any(each[:1] == "-" for each in arguments):
        return [*arguments]
    if "://" in path and not path.startswith("registry"):
        path = copied_checkpoint(path, _copies().name)
        arguments = [f"ckpt_path={path}" if each.startswith("ckpt_path=") else each for each in arguments]
    if not Path(path).is_file():
        return [*arguments]
    try:
        checkpoint = read_checkpoint(path, trusted=trusted)
    except ConfigError:  # of which check_run reports the reason
        return [*arguments]
    stored = _arguments_in(checkpoint)
    chosen = dict(each.split("=", 1) for each in stored if each.partition("=")[0] in _KEPT)
    kept = [each for each in stored if not _is_replaced(each, given, chosen)]
    if "predict" in given:
        kept = [each for each in kept if not _STREAMING.match(each)]
    elif any(map(_TRAIN_STREAMING.match, kept)):
        kept = [each for each in kept if not _OF_TRAIN_STREAM.match(each)]
    if (code := [each for each in kept if _names_code(each)]) and not trusted:
        raise ConfigError(
            f"ckpt_path={given['ckpt_path']} was trained with {' '.join(code)}, which may run code, as "
            "commands that streams read: give these settings again, with the same values or others, or "
            "trust_ckpt=true if you trust whoever wrote the checkpoint"
        )
    return [*kept, *arguments]


@functools.cache
def _copies() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is removed when the program ends."""
    return tempfile.TemporaryDirectory(prefix="tarpeg-")


def _arguments_in(checkpoint: Any) -> list[str]:
    """Return the settings in a checkpoint, of the groups that belong to it and in Hydra's form."""
    stored = checkpoint.get(_KEY) if isinstance(checkpoint, Mapping) else None
    found = stored.get("arguments") if isinstance(stored, Mapping) else None
    listed = found if isinstance(found, list) else ()
    return [each for each in listed if isinstance(each, str) and _group_of(each) in _KEPT]


def _names_code(argument: str) -> bool:
    """Return whether a setting may run code: by itself, or by a file of settings that is not one of conf/."""
    override = OverridesParser.create().parse_override(argument)
    key, value = override.key_or_group, override.value()
    if override.package is not None or not _is_plain({key: value}):
        return True
    return key in _KEPT and not (value is None or (isinstance(value, str) and _OPTION.fullmatch(value)))


def _is_plain(value: Any) -> bool:
    """Return whether a value, as Hydra reads it, is made of numbers and of texts that name no code."""
    if isinstance(value, Mapping):
        keys = map(str, value)
        return all(_KEY_OF.fullmatch(key) and not _RISKY.search(key) for key in keys) and all(
            map(_is_plain, value.values())
        )
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return _TEXT.fullmatch(value) is not None
    return value is None or isinstance(value, (bool, int, float))


def _group_of(argument: str) -> str:
    try:
        OverridesParser.create().parse_override(argument)
    except HydraException:
        return ""
    return re.split(r"[.=@:]", argument.lstrip("+~"))[0]


def _is_replaced(argument: str, given: Mapping[str, str], chosen: Mapping[str, str]) -> bool:
    """Return whether the command line has that setting, or chooses another option of its group."""
    key = argument.partition("=")[0].lstrip("+~")
    keys = {name.lstrip("+~") for name in given}
    group = _group_of(argument)
    return key in keys or (group in keys and given[group] not in ("null", chosen.get(group)))

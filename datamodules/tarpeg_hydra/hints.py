"""Hydra's command lines: arguments that it would misread, and advice of tarpeg as commands and overrides."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf

if TYPE_CHECKING:  # importing it loads the operators, which the tools may not need
    from tarpeg.diagnostics.advice import Advice, Call

_TOOLS = {"build_cache": "build_cache", "diagnose": "doctor"}
_CHECKOUT = Path(__file__).resolve().parents[2]


def command(tool: str) -> str:
    """Return how the reader starts a tool: by a script of the checkout, or by the command ``tarpeg``."""
    if Path(sys.argv[0]).name.startswith("tarpeg") or not (_CHECKOUT / "tools" / f"{tool}.py").is_file():
        return f"tarpeg {tool.replace('_', '-')}"
    return f"python tools/{tool}.py"


def settings(tool: str) -> str:
    """Return the path of the file that explains a tool's settings."""
    found = _CHECKOUT / "conf" / f"{tool}.yaml"
    return str(found if found.is_file() else Path(__file__).parents[1] / "tarpeg" / "conf" / f"{tool}.yaml")


OmegaConf.register_new_resolver("command", command, replace=True)
OmegaConf.register_new_resolver("settings", settings, replace=True)


def check_arguments(program: str, arguments: Sequence[str]) -> None:
    """Raise SystemExit with one line for arguments that Hydra cannot read, and for braces without quotes.

    A shell expands braces to several arguments with one key, of which Hydra would take the last.
    """
    before = ("", "")
    for argument in (argument for argument in arguments if "=" in argument and argument[0] != "-"):
        key, _, value = argument.partition("=")
        pattern = (key, re.sub(r"\d+", "0", value))
        if re.match(r"[^\"'\[({$]+\{", value) or (value.endswith(".tar") and pattern == before):
            raise SystemExit(
                f"{program}: {key} has braces without quotes: {value}. Braces need the shell's quotes and "
                f"Hydra's: '{key}=\"/data/train-{{000..009}}.tar\"'"
            )
        before = pattern
        try:
            OverridesParser.create().parse_override(argument)
        except HydraException:
            raise SystemExit(
                f"{program}: {argument} cannot be read: a value with special characters needs Hydra's quotes "
                f"within the shell's: {_quoted(key, value)}"
            ) from None


# Parts of tarpeg's messages, and the same with the overrides that follow from them.
_HINTS = {
    r"^((affine|color|erase|mask|mix)=.* must be a (tarpeg\.\w+))": r"\1 (+augment.\2._target_=\3)",
    r"(?<![\w.])(num_classes=\d)": r"model.net.\1",
    r"(give augment=None)(?= and normalise|$)": r"\1 (~augment)",
    r"([Cc]hoose another out)\b": r"\1 (data.prepare.out=...)",
    r"(train with val=None)\b": r"\1 (data.val=null)",
    r"(?s)^.*Are you sure that module 'timm' is installed.*$": "timm is not installed: pip install timm",
    r"(allow_overlap=True)\b": r"\1 (+data.allow_overlap=true)",
}


def with_overrides(error: BaseException | str) -> str:
    """Return a message of tarpeg, such as that of an error, with the Hydra overrides that follow from it."""
    text = str(error)
    for pattern, hint in _HINTS.items():
        text = re.sub(pattern, hint, text)
    return text


def in_overrides(advice: Advice) -> str:
    """Return the sentence of an advice, with commands and overrides in place of Python calls."""
    return "".join(part if isinstance(part, str) else _command(part) for part in advice)


def _command(call: Call) -> str:
    name, arguments = call.function.removeprefix("tarpeg."), call.arguments
    if name in _TOOLS:
        words = [override for key, value in arguments.items() for override in _overrides(key, value)]
        return f"`{' '.join([command(_TOOLS[name]), *words])}`"
    if name == "Trainer":  # conf/profiler has the names of torch's modules
        return f"`python train.py profiler={arguments['profiler'].replace('pytorch', 'torch')}`"
    if name == "Augment":
        return "augment=imagenet"
    prefix = {"ShardDataModule": "data.", "Split": "data.train."}[name]
    return " ".join(word for key, value in arguments.items() for word in _overrides(prefix + key, value))


def _overrides(key: str, value: Any) -> list[str]:
    """Return an argument as overrides; a nested call, of a codec, becomes an option of the group codec."""
    if (codec := getattr(value, "function", None)) is not None:
        option = codec.removeprefix("tarpeg.").lower()
        return [f"{key}={option}", *(f"{key}.{name}={each}" for name, each in value.arguments.items())]
    if key == "data.train.crop":
        return [f"{key}.size=..."]
    if key == "data.train.streaming":  # not every file of conf/data has it
        key = f"++{key}"
    if isinstance(value, (list, str)):
        return [_quoted(key, value)]
    return [f"{key}={'...' if value is ... else 'null' if value is None else str(value).lower()}"]


def _quoted(key: str, value: str | list[str]) -> str:
    """Quote an override for the shell and for Hydra."""
    if isinstance(value, str) and re.fullmatch(r"[\w./:@%+-]+", value):
        return f"{key}={value}"
    parts = [value] if isinstance(value, str) else value
    quoted = ",".join('"' + part.replace('"', '\\"') + '"' for part in parts)
    return shlex.quote(f"{key}={quoted}" if isinstance(value, str) else f"{key}=[{quoted}]")

"""Hydra's command lines: unquoted braces, and advice of tarpeg as commands and overrides of this checkout.

Used by ``train.py`` and the tools, no part of the package. It is beside the package because managed training
ships ``train.py`` and ``datamodules/`` without the tools.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it loads the operators, which the tools may not need
    from tarpeg.diagnostics.advice import Advice, Call

_TOOLS = {"build_cache": "tools/build_cache.py", "diagnose": "tools/doctor.py"}


def check_braces(program: str, arguments: Sequence[str]) -> None:
    """Raise SystemExit with one line for a brace pattern without quotes.

    A shell expands it to several arguments with one key, of which Hydra takes the last.
    """
    pairs = [argument.partition("=") for argument in arguments if not argument.startswith(("-", "hydra"))]
    shards = [key for key, _, value in pairs if value.endswith(".tar")]
    for key, _, value in pairs:
        if shards.count(key) > 1 or re.match(r"[^\"'\[({$]+\{", value):
            raise SystemExit(
                f"{program}: {key} has braces without quotes, or is given {shards.count(key)} times. Braces "
                f"need the shell's quotes and Hydra's: '{key}=\"/data/train-{{000..009}}.tar\"'"
            )


# Parts of tarpeg's messages, and the same with the overrides that follow from them.
_HINTS = {
    r"^((affine|color|erase|mask|mix)=.* must be a (tarpeg\.\w+))": r"\1 (+augment.\2._target_=\3)",
    r"([Cc]hoose another out)\b": r"\1 (data.prepare.out=...)",
    r"(allow_overlap=True)\b": r"\1 (+data.allow_overlap=true)",
}


def with_overrides(error: BaseException) -> str:
    """Return the message of an error of tarpeg, with the Hydra overrides that follow from it."""
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
        return f"`{' '.join(['python', _TOOLS[name], *words])}`"
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

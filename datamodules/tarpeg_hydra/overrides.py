"""Messages and advice of tarpeg for users of the command line: settings as Hydra's overrides."""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, InstantiationException
from omegaconf.errors import MissingMandatoryValue
from tarpeg.errors import BuildError, DecodeError, ResumeError, ShardError
from tarpeg.remedies import Call, Part, Setting, parts_of

_TOOLS = {"build_cache": "build_cache", "diagnose": "doctor"}
_CHECKOUT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def one_line_errors(program: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of settings and files into SystemExit with one line, which begins with ``program``.

    Args:
        program: name of the script or tool.
        kinds: exceptions besides those of tarpeg and Hydra.
    """
    expected: tuple[type[Exception], ...] = (ShardError, DecodeError, BuildError, ResumeError, *kinds)
    try:
        yield
    except InstantiationException as error:
        key, cause = re.search(r"full_key: (\S+)", str(error)), error.__cause__ or error
        kind = "" if isinstance(cause, (ValueError, ImportError, ShardError)) else f"{type(cause).__name__}: "
        where = f"{key[1]}: " if key else ""
        raise SystemExit(f"{program}: {where}{kind}{with_overrides(cause)}") from None
    except MissingMandatoryValue as error:
        raise SystemExit(f"{program}: {error.full_key} is not set: give {error.full_key}=...") from None
    except expected as error:
        raise SystemExit(f"{program}: {with_overrides(error)}") from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        file = error.filename2 or error.filename
        where = f"{file} is incomplete: " if file else ""
        raise SystemExit(f"{program}: {where}{error.strerror}. Free some, or write to another disk") from None


def command(tool: str) -> str:
    """Return how the reader starts a tool: by a script of the checkout, or by the command ``tarpeg``."""
    if Path(sys.argv[0]).name.startswith("tarpeg") or not (_CHECKOUT / "tools" / f"{tool}.py").is_file():
        return f"tarpeg {tool.replace('_', '-')}"
    return f"python tools/{tool}.py"


# Groups of the settings of train.py by owner; those of a tool have no group.
_GROUPS = {
    "ShardDataModule": "data.",
    "Split": "data.train.",
    "prepare": "data.prepare.",
    "Augment": "augment.",
    "network": "model.net.",
    "detector": "model.",
}
_WHOLE_GROUPS = {"data.augment": "augment"}
_NOT_IN_EVERY_FILE = {"data.allow_overlap", "data.allow_other_data", "data.train.streaming"}
_OPTIONAL_PACKAGES = {"timm"}


def with_overrides(message: BaseException | str) -> str:
    """Return a message of tarpeg, such as that of an error, with Hydra's overrides in place of Python."""
    reason = message.__cause__ if isinstance(message, ImportError) else None
    if isinstance(reason, ModuleNotFoundError) and reason.name in _OPTIONAL_PACKAGES:
        return f"{reason.name} is not installed: pip install {reason.name}"
    return in_overrides(parts_of(message))


def in_overrides(parts: Iterable[Part]) -> str:
    """Return the text of a message or an advice, with commands and overrides in place of Python."""
    return "".join(part if isinstance(part, str) else _shown(part) for part in parts)


def _shown(remedy: Call | Setting) -> str:
    if isinstance(remedy, Setting):
        key = _GROUPS.get(remedy.owner, "") + remedy.name
        if remedy.value is ...:
            return key
        if remedy.value is None and key in _WHOLE_GROUPS:
            return f"~{_WHOLE_GROUPS[key]}"
        if remedy.owner == "Augment":
            return f"+{key}._target_={remedy.value.function}"
        return " ".join(_overrides(key, remedy.value))
    name, arguments = remedy.function.removeprefix("tarpeg."), remedy.arguments
    if name in _TOOLS:
        words = [override for key, value in arguments.items() for override in _overrides(key, value)]
        return f"`{' '.join([command(_TOOLS[name]), *words])}`"
    if name == "Trainer":  # conf/profiler has the names of torch's modules
        return f"`python train.py profiler={arguments['profiler'].replace('pytorch', 'torch')}`"
    if name == "Augment":
        return "augment=imagenet"
    return " ".join(
        word for key, value in arguments.items() for word in _overrides(_GROUPS[name] + key, value)
    )


def _overrides(key: str, value: Any) -> list[str]:
    """Return an argument as overrides; a nested call, of a codec, becomes an option of the group codec."""
    if isinstance(value, Call):
        option = value.function.removeprefix("tarpeg.").lower()
        return [f"{key}={option}", *(f"{key}.{name}={each}" for name, each in value.arguments.items())]
    if key == "data.train.crop":
        return [f"{key}.size=..."]
    if key == "data.train.streaming" and value is True:
        return ["++data.train.streaming=true (of a validation set, ++data.val.streaming=true)"]
    if key in _NOT_IN_EVERY_FILE:
        key = f"++{key}"
    if isinstance(value, (list, str)):
        return [quoted(key, value)]
    if value is ...:
        return [f"{key}=..."]
    return [f"{key}={'null' if value is None else str(value).lower()}"]


def quoted(key: str, value: str | list[str]) -> str:
    """Quote an override for the shell and for Hydra."""
    if isinstance(value, str) and re.fullmatch(r"[\w./:@%+-]+", value) and _is_text(f"{key}={value}", value):
        return f"{key}={value}"
    parts = [value] if isinstance(value, str) else value
    # Backslashes are doubled before a quote alone.
    parts = [re.sub(r'(\\+)("|\Z)', r"\1\1\2", part).replace('"', '\\"') for part in parts]
    quoted = ",".join(f'"{part}"' for part in parts)
    return shlex.quote(f"{key}={quoted}" if isinstance(value, str) else f"{key}=[{quoted}]")


def _is_text(override: str, value: str) -> bool:
    """Whether Hydra reads an override as that text: others are numbers or null, or an error."""
    try:
        found: bool = OverridesParser.create().parse_override(override).value() == value
    except HydraException:  # such as letters above ASCII
        return False
    return found

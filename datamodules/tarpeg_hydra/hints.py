"""Hydra's command lines: arguments that it would misread, and advice of tarpeg as commands and overrides."""

from __future__ import annotations

import inspect
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tarpeg.errors import similar

if TYPE_CHECKING:  # importing it loads the operators, which the tools may not need
    from tarpeg.diagnostics.advice import Advice, Call

_TOOLS = {"build_cache": "build_cache", "diagnose": "doctor"}
_CHECKOUT = Path(__file__).resolve().parents[2]
_CONF = Path(__file__).resolve().parents[1] / "tarpeg" / "conf"


def command(tool: str) -> str:
    """Return how the reader starts a tool: by a script of the checkout, or by the command ``tarpeg``."""
    if Path(sys.argv[0]).name.startswith("tarpeg") or not (_CHECKOUT / "tools" / f"{tool}.py").is_file():
        return f"tarpeg {tool.replace('_', '-')}"
    return f"python tools/{tool}.py"


def settings(tool: str) -> str:
    """Return the path of the file that explains a tool's settings."""
    found = _CHECKOUT / "conf" / f"{tool}.yaml"
    return str(found if found.is_file() else _CONF / f"{tool}.yaml")


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


def check_settings(program: str, arguments: Sequence[str]) -> None:
    """Raise SystemExit with one line for settings that do not exist, with the name of a similar one.

    ``program``: the file of its settings in conf/. Arguments that begin with "-", such as --multirun, are
    left to Hydra.
    """
    if any(argument.startswith("-") for argument in arguments):
        return
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    try:
        config = _composed(program, arguments)
    except MissingConfigException as error:
        group, _, option = str(error.missing_cfg_file).partition("/")
        problem = f"{group}={option} must be one of {', '.join(error.options or ())}"
        problem += (
            _own_data("train", option)
            if group == "data" and _is_path(option)
            else similar(option, error.options or (), f"{group}={{}}".format)
        )
    except ConfigCompositionException as error:
        found = re.search(r"Could not (?:override|append to config.*|delete.*) '([^']+)'", str(error))
        key = found[1] if found else ""
        if key not in given:
            return
        problem = _unknown(program, key, given)
    except (HydraException, OmegaConfBaseException, ValueError):
        empty = [key for key, value in given.items() if value == "null" and (_conf() / key).is_dir()]
        if not empty:
            return  # Hydra explains it
        is_needed = empty[0] in ("data", "model", "trainer")
        remedy = f"choose one: {empty[0]}=NAME" if is_needed else f"~{empty[0]} leaves it out"
        problem = f"{empty[0]}=null cannot be given here: {remedy}"
    else:
        problem = next(_misplaced(config, given), "")
    if problem:
        raise SystemExit(f"{program}: {problem}")


def _conf() -> Path:
    # Services that copy a source directory may leave out its links; conf/ itself is in a checkout.
    return _CONF if _CONF.is_dir() else _CHECKOUT / "conf"


def _composed(program: str, arguments: Sequence[str]) -> DictConfig:
    with initialize_config_dir(str(_conf()), version_base="1.3"):
        return compose(program, list(arguments), return_hydra_config=True)


def _unknown(program: str, key: str, given: dict[str, str]) -> str:
    """Explain a key that is not in the settings: a similar one, or the argument that ``+`` would add."""
    groups = [f"{name}={value}" for name, value in given.items() if "." not in name and name != key]
    try:
        config = _composed(program, groups)
    except (HydraException, OmegaConfBaseException, ValueError):
        config = _composed(program, [])
    kind = key.removeprefix("data.").removesuffix(".shards")
    if (kind in ("train", "val", "test") and key == kind and _is_path(given[key])) or kind == "predict":
        return f"{key} is not a setting" + _own_data(kind, given[key])
    path, node = [], config
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node:
            break
        path.append(part)
        node = node[part]
    prefix, part = "".join(f"{each}." for each in path), key.split(".")[len(path)]
    own = _arguments(node)
    if prefix + part == key and part in own:
        return f"{key} is not in the file of these settings: add it with +{key}={given[key]}"
    known = [str(name) for name in node] if isinstance(node, DictConfig) else []
    if hint := similar(part, [*known, *own], lambda name: f"{prefix}{name}{key[len(prefix + part) :]}"):
        return f"{key} is not a setting{hint}"
    paths = [*_paths(config)]
    near = get_close_matches(key.rpartition(".")[2], {name.rpartition(".")[2]: 0 for name in paths}, 1)
    same = [name for name in paths if near and name.rpartition(".")[2] == near[0]]
    best = max(same, key=lambda name: SequenceMatcher(None, name, key).ratio(), default="")
    hint = f"; did you mean {best}?" if best else f"; `{_program(program)} --help` lists them"
    return f"{key} is not a setting{hint}"


def _misplaced(config: DictConfig, given: dict[str, str]) -> Iterator[str]:
    """Explain settings of the data without data=shards, and arguments that their function does not have."""
    data = config.get("data") or {}
    for kind in ("train", "val", "test", "predict"):
        if isinstance(data.get(kind), str):
            yield f"data.{kind}={data[kind]} must be a split" + _own_data(kind, data[kind])
        shards = given.get(f"data.{kind}.shards")
        if shards and config.hydra.runtime.choices.get("data") == "synthetic":
            yield (
                f"data.{kind}.shards={shards} is given with data=synthetic, which draws photographs and has "
                "their settings: add data=shards"
            )
    for key in given:
        parent, _, name = key.lstrip("+~").rpartition(".")
        node = OmegaConf.select(config, parent) if parent else None
        own = _arguments(node)
        if own and isinstance(node, DictConfig) and name in node and name not in own and name[:1] != "_":
            near = similar(name, own, f"{parent}.{{}}".format)
            yield f"{parent}.{name} is not an argument of {node['_target_']}{near}"


def _own_data(kind: str, place: str) -> str:
    if kind == "predict":
        return f"; to write the classes of images to a table: predict={place} ckpt_path=..."
    return f"; for shards of your own: data=shards data.{kind}.shards={place}"


def _is_path(value: str) -> bool:
    return "/" in value or value.endswith(".tar") or Path(value).exists()


def _arguments(node: Any) -> list[str]:
    """Names of the arguments of a node's _target_; [] if it has others, or an import may take seconds."""
    target = str(node.get("_target_", "")) if isinstance(node, DictConfig) else ""
    if target.partition(".")[0] not in ("tarpeg", "lightning", "torch"):
        return []
    parameters = inspect.signature(get_object(target)).parameters.values()
    has_others = any(each.kind == each.VAR_KEYWORD for each in parameters)
    return [] if has_others else [each.name for each in parameters]


def _paths(node: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(node, DictConfig):
        for name in node:
            if prefix or name != "hydra":
                yield f"{prefix}{name}"
                is_missing = OmegaConf.is_missing(node, name)
                yield from () if is_missing else _paths(node._get_node(name), f"{prefix}{name}.")


def _program(program: str) -> str:
    return "python train.py" if program == "train" else command(program)


# Parts of tarpeg's messages, and the same with the overrides that follow from them.
_HINTS = {
    r"^((affine|color|erase|mask|mix)=.* must be a (tarpeg\.\w+))": r"\1 (+augment.\2._target_=\3)",
    r"(?<![\w.])(num_classes=\d)": r"model.net.\1",
    r"(?<![\w.])((?:global_)?batch_size=)(?= (?:times|fixes))": r"data.\1",
    r"(give augment=None)(?= and normalise|$)": r"\1 (~augment)",
    r"([Cc]hoose another out)\b": r"\1 (data.prepare.out=...)",
    r"(train with val=None)\b": r"\1 (data.val=null)",
    r"(?s)^.*Are you sure that module 'timm' is installed.*$": "timm is not installed: pip install timm",
    r"you have set Trainer\(max_epochs=(\d+)\)\.$": r"max_epochs is \1: give more, trainer.max_epochs=...",
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

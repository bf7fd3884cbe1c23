"""Hydra's command lines: arguments that it would misread, and settings that do not exist."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

import tarpeg
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from tarpeg.errors import similar

from .overrides import command, quoted

_CHECKOUT = Path(__file__).resolve().parents[2]
_CONF = Path(__file__).resolve().parents[1] / "tarpeg" / "conf"


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
            override = OverridesParser.create().parse_override(argument)
        except HydraException:
            is_nested = value[:1] in ("{", "[")
            example = "'{separator: \";\"}'" if is_nested else quoted(key, value)
            where = "there, and the whole argument the shell's" if is_nested else "within the shell's"
            raise SystemExit(
                f"{program}: {argument} cannot be read: a value with special characters needs Hydra's quotes "
                f"{where}: {example}"
            ) from None
        is_multirun = {"-m", "--multirun"} & {*arguments} or any(
            each[:10] == "hydra.mode" for each in arguments
        )
        if override.is_sweep_override() and not is_multirun:
            raise SystemExit(
                f"{program}: {argument} has several values: -m runs {program} with each. If it is one "
                f"value, it needs Hydra's quotes within the shell's: {quoted(key, value)}"
            )


def check_settings(program: str, arguments: Sequence[str]) -> None:
    """Raise SystemExit with one line for settings that do not exist, with the name of a similar one.

    Args:
        program: The file of its settings in conf/.
        arguments: Overrides. With arguments that begin with "-", such as --multirun, all is left to Hydra.
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
        # "null" and numbers are no names of files.
        groups = [key for key, value in given.items() if (_conf() / key).is_dir() and _is_scalar(value)]
        if not groups:
            return  # Hydra explains it
        is_needed = groups[0] in ("data", "model", "trainer")
        remedy = f"choose one: {groups[0]}=NAME" if is_needed else f"~{groups[0]} leaves it out"
        problem = f"{groups[0]}={given[groups[0]]} cannot be given here: {remedy}"
    else:
        problem = next(_misplaced(config, given), "") or _ungrouped(program, given) or _not_writable(config)
        problem = problem or _no_truth(program, config, given)
    if problem:
        raise SystemExit(f"{program}: {problem}")


def check_truths(program: str, config: DictConfig) -> None:
    """Raise SystemExit for a text, such as "no", in a setting of the program that is true or false.

    Hydra reads true and false alone, and any text counts as true in Python.
    """
    defaults = OmegaConf.load(settings(program))
    for key in map(str, defaults):
        given = OmegaConf.select(config, key, throw_on_missing=False)
        if isinstance(OmegaConf.select(defaults, key), bool) and not isinstance(given, bool):
            raise SystemExit(f"{program}: {key}={given} must be true or false")


def _no_truth(program: str, config: DictConfig, given: dict[str, str]) -> str:
    """Explain a word in place of true or false; "" without one."""
    words = [key for key, value in given.items() if value.isalpha() and isinstance(_at(config, key), str)]
    if not words:
        return ""
    defaults = _composed(
        program, [f"{key}={value}" for key, value in given.items() if (_conf() / key).is_dir()]
    )
    wrong = next((key for key in words if isinstance(_at(defaults, key), bool)), "")
    return f"{wrong}={given[wrong]} must be true or false" if wrong else ""


def _at(config: DictConfig, key: str) -> Any:
    return OmegaConf.select(config, key.lstrip("+~"), throw_on_missing=False)


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
    if program in ("plan", "preview") and not path and key.partition(".")[0] in _composed("train", []):
        return f"{key} is a setting of train.py: leave it out here"
    if path == key.split("."):  # a dict, which Hydra merges with the one that is there
        new = shlex.quote(f"+{key}={given[key]}")
        return f"{key} has other settings than {given[key]}: replace them all by '~{key}' {new}"
    prefix, part = "".join(f"{each}." for each in path), key.split(".")[len(path)]
    own = _arguments(node)
    if prefix + part == key and part in own:
        return f"{key} is not in the file of these settings: add it with +{key}={given[key]}"
    if prefix + part == key and (files := _files_with(prefix.rstrip("."), part)):
        return f"{key} is a setting of {', '.join(files)} alone: give one of them"
    if part in own:
        whole = f"'+{prefix}{part}={{_target_: ..., ...}}'"
        return f"{prefix}{part} is not in the file of these settings: add all that it needs, {whole}"
    known = [str(name) for name in node] if isinstance(node, DictConfig) else []
    for names in (known, own):  # those of the file first
        if hint := similar(part, names, lambda name: f"{prefix}{name}{key[len(prefix + part) :]}"):
            return f"{key} is not a setting{hint}"
    paths = [*_paths(config)]
    near = get_close_matches(key.rpartition(".")[2], {name.rpartition(".")[2]: 0 for name in paths}, 1)
    same = [name for name in paths if near and name.rpartition(".")[2] == near[0]]
    best = max(same, key=lambda name: SequenceMatcher(None, name, key).ratio(), default="")
    hint = f"; did you mean {best}?" if best else f"; `{_program(program)} --help` lists them"
    return f"{key} is not a setting{hint}"


def _files_with(group: str, name: str) -> list[str]:
    """Return the files of a group of settings that have this one, as overrides."""
    found = sorted((_conf() / group).glob("*.yaml")) if group else []
    # Keys of a container are also those that must be given, "???".
    known = [(path.stem, OmegaConf.to_container(OmegaConf.load(path))) for path in found]
    return [f"{group}={file}" for file, keys in known if isinstance(keys, dict) and name in keys]


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
        if name == "_target_" and isinstance(node, DictConfig):
            yield from _left_over(parent, node)
        own = _arguments(node)
        if own and isinstance(node, DictConfig) and name in node and name not in own and name[:1] != "_":
            near = similar(name, own, f"{parent}.{{}}".format)
            yield f"{parent}.{name} is not an argument of {node['_target_']}{near}"


def _ungrouped(program: str, given: dict[str, str]) -> str:
    """Explain a value in place of the settings of a class; those of the data explain themselves."""
    values = {
        key: value
        for key, value in given.items()
        if "." in key
        and key[0] not in "+~"
        and key[:5] != "data."
        and value != "null"
        and value[:1] not in "{$"
    }
    if not values:
        return ""
    groups = [f"{key}={value}" for key, value in given.items() if (_conf() / key).is_dir()]
    before = _composed(program, groups)
    for key, value in values.items():
        parent, _, name = key.rpartition(".")
        holder = OmegaConf.select(before, parent)
        # What Hydra knows when it runs is not resolved here.
        if (
            not isinstance(holder, DictConfig)
            or name not in holder
            or OmegaConf.is_interpolation(holder, name)
        ):
            continue
        node = OmegaConf.select(before, key)
        if not isinstance(node, DictConfig) or "_target_" not in node:
            continue
        group = key.partition(".")[0]
        options = sorted(path.stem for path in (_conf() / group).glob("*.yaml"))
        choice = f"; one of the files of {group}: {group}={value}" * (value in options)
        return f"{key}={value} must be settings, such as {key}._target_={node._target_}{choice}"
    return ""


def _is_scalar(value: str) -> bool:
    return value == "null" or not isinstance(
        OverridesParser.create().parse_override(f"a={value}").value(), str
    )


def _left_over(parent: str, node: DictConfig) -> Iterator[str]:
    """Explain a class that does not exist, and settings of the class that another one takes the place of."""
    target = str(node._target_)
    room, _, name = target.rpartition(".")
    if room == "tarpeg" and name not in tarpeg.__all__:
        near = similar(name, tarpeg.__all__, f"{parent}._target_=tarpeg.{{}}".format)
        yield f"{parent}._target_={target} does not exist{near}"
        return
    own = _arguments(node)
    if others := [str(each) for each in node if own and each not in own and str(each)[:1] != "_"]:
        remedy = " ".join(f"'~{parent}.{each}'" for each in others)
        yield f"{parent}._target_={target} has no argument {' and '.join(others)}: add {remedy}"


def _not_writable(config: DictConfig) -> str:
    """Explain that a run's folder cannot be written: Hydra makes it before anything else."""
    try:
        folder = Path(config.hydra.run.dir)
    except OmegaConfBaseException:  # of values that the run alone has, such as ${hydra:job.name}
        return ""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(each))
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return (
            f"{there} cannot be written ({error.strerror}), and the results go into {folder}: give "
            "hydra.run.dir=DIR"
        )


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
                yield f"{prefix}{name!s}"
                is_missing = OmegaConf.is_missing(node, name)
                yield from () if is_missing else _paths(node._get_node(name), f"{prefix}{name!s}.")


def _program(program: str) -> str:
    return "python train.py" if program == "train" else command(program)

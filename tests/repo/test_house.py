"""The rules of the house: rooms, floors, and what importing does."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import tarpeg
from helpers.checkouts import ROOT
from helpers.scripts import run_python
from tarpeg_hydra.command import COMMANDS

PACKAGE = ROOT / "datamodules" / "tarpeg"
# Without conf and native: rglob does not follow symbolic links.
MODULES = sorted(PACKAGE.rglob("*.py"))
NATIVE = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h", ".cu"))
CONF = sorted((ROOT / "conf").rglob("*.yaml"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A module imports from lower floors and from its own room; two rooms of one floor do not import each other.
FLOORS = {
    "diagnostics": 6,
    **dict.fromkeys(("datamodule", "datasets"), 5),
    **dict.fromkeys(("loader", "cache"), 4),
    **dict.fromkeys(("transforms", "targets"), 3),
    **dict.fromkeys(("shards", "augment"), 2),
    **dict.fromkeys(("sampling", "ops"), 1),
    **dict.fromkeys(("errors", "forks", "machine", "progress", "files", "processes", "remedies"), 0),
}
ROOMS = {path.parent.name for path in MODULES if path.stem == "__init__"} - {PACKAGE.name}
LIGHTNING = {"datamodule", "diagnostics.monitor"}
# These pass an exception on to the caller: it is raised where the result is requested, or with its sample.
CATCH_ALL = {"loader.workers", "transforms.results"}
# These read pickles of their own child processes; nothing from a shard is ever unpickled.
PICKLES = {"loader.workers", "processes"}


def name_of(path: Path) -> str:
    """``loader.fetch`` for loader/fetch.py; ``loader`` for loader/__init__.py; "" for the package itself."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


NAMES = {name_of(path): path for path in MODULES}


def floor_of(name: str) -> int:
    return FLOORS[name.partition(".")[0]]


def room_of(name: str) -> str:
    """The room of a module; the files of the ground floor are one room."""
    return name.partition(".")[0] if floor_of(name) else "ground floor"


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> list[tuple[str, str]]:
    """All imports of a file, also within functions, as (module, name).

    Modules of the package are relative to it, with a leading dot: (".loader.fetch", "Fetcher").
    """
    here = name_of(path).split(".")
    package = here if path.stem == "__init__" else here[:-1]
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = [*package[: len(package) - node.level + 1], *filter(None, base.split("."))]
                base = "." + ".".join(filter(None, parts))
            for alias in node.names:
                inner = f"{base}.{alias.name}".replace("..", ".")
                found.append((inner, "") if base[:1] == "." and inner[1:] in NAMES else (base, alias.name))
    return found


def inner_imports(path: Path) -> list[tuple[str, str]]:
    """The imports of other modules of the package, without the leading dot."""
    return [(module[1:], name) for module, name in imports(path) if module[:1] == "."]


def outer_imports(path: Path) -> set[str]:
    return {module.partition(".")[0] for module, _ in imports(path) if module[:1] != "."}


def for_each(paths: list[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """A rule of each of these files, as one test that names all files that break it."""

    def test_of(rule: Callable[[Path], None]) -> Callable[[], None]:
        def test() -> None:
            broken = []
            for path in paths:
                try:
                    rule(path)
                except AssertionError as error:
                    broken.append(f"{path.relative_to(ROOT)}: {error}")
            assert not broken, "\n".join(broken)

        test.__name__, test.__doc__ = rule.__name__, rule.__doc__
        return test

    return test_of


each_module = for_each(MODULES)


@each_module
def test_imports_go_down_or_stay_in_the_room(path):
    name = name_of(path)
    if not name:
        return  # the package imports each public name at its first use
    assert name.partition(".")[0] in FLOORS, f"{name} is on no floor: give its room one in FLOORS"
    for module, _ in inner_imports(path):
        is_below = not module or floor_of(module) < floor_of(name)
        assert is_below or room_of(module) == room_of(name), f"{name} imports {module}: not on a lower floor"


@each_module
def test_private_names_stay_in_their_room(path):
    room = name_of(path).partition(".")[0]
    for module, imported in inner_imports(path):
        private = [part for part in (*module.split("."), imported) if re.match(r"_[^_]", part)]
        assert module.partition(".")[0] == room or not private, f"{name_of(path)} imports {module} {imported}"


def test_there_are_no_import_cycles():
    graph = {name: {module for module, _ in inner_imports(path)} - {name} for name, path in NAMES.items()}
    del graph[""]  # the package imports each public name at its first use
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_rooms_hold_one_docstring_and_no_code():
    for room in ROOMS:
        body = tree_of(PACKAGE / room / "__init__.py").body
        assert [type(node) for node in body] == [ast.Expr], f"{room}/__init__.py holds more than a docstring"


@functools.cache
def _code(path: Path) -> str:
    """The source without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(value=None)
    return ast.unparse(tree)


@each_module
def test_what_the_package_never_imports(path):
    name, outer = name_of(path), outer_imports(path)
    assert not outer & {
        "hydra",
        "omegaconf",
        "tarpeg_hydra",
        "benchmarks",
        "training",
        "tools",
        "train",
        "tests",
    }
    assert not outer & {"helpers", "datamodules", "tarpeg"}
    if name not in LIGHTNING:
        assert not outer & {"lightning", "pytorch_lightning", "torchmetrics"}


@each_module
def test_messages_speak_no_hydra_and_only_ops_uses_the_native_operators(path):
    """Overrides and config keys are known to train.py and the tools alone."""
    found = re.findall(r"\b_target_\b|\+augment\.|\bdata\.(?:prepare|workers|train|val)\b\S*=", _code(path))
    assert not found, f"{name_of(path)}: {found}"
    assert name_of(path).startswith("ops.") or "torch.ops.tarpeg." not in _code(path)


@each_module
def test_no_print_no_catch_all_no_unpickling_of_data(path):
    name = name_of(path)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "eval", "exec"), f"{name}:{node.lineno}"
        if isinstance(node, ast.ExceptHandler):
            caught = "" if node.type is None else ast.unparse(node.type)
            is_reraised = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert is_reraised or name in CATCH_ALL or not re.search(r"^$|\b(Base)?Exception\b", caught), (
                f"{name}:{node.lineno} catches everything"
            )
    assert name in PICKLES or "pickle.load" not in _code(path)


IMPORT = """
import subprocess, sys
start = subprocess.Popen.__init__
def watch(self, command, *arguments, **named):
    # torch's own import calls ldconfig to find CUDA's driver
    assert "ldconfig" in str(command), f"a process was started: {{command}}"
    start(self, command, *arguments, **named)
subprocess.Popen.__init__ = watch
{body}
torch = sys.modules.get("torch")
assert torch is None or not torch.cuda.is_initialized(), "CUDA is initialised"
heavy = [name for name in ("lightning", "hydra", "torch", "PIL", "numpy") if name in sys.modules]
sys.stderr.write(",".join(heavy))
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n" + IMPORT.format(body=body)
    return run_python("-c", code, TARPEG_NO_BUILD="1", TARPEG_LIB_DIR="/nonexistent")


@pytest.mark.quick
def test_importing_the_package_does_nothing_else():
    done = run("import tarpeg; dir(tarpeg); tarpeg.__version__; tarpeg.DecodeError; tarpeg.Status")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Children that draw photographs start quickly, and the doctor can report a torch that does not import.
TORCH_FREE_ROOMS = {"sampling", "datasets", "machine", "progress", "files", "forks", "processes", "errors"}
TORCH_FREE = {
    "diagnostics.doctor",
    "ops.compiler",
    "ops.library",
    "shards.folder",
    "shards.paths",
    "shards.manifest",
    "shards.walk",
}


@pytest.mark.quick
def test_torch_free_modules_do_not_import_torch():
    assert {*TORCH_FREE_ROOMS, *TORCH_FREE} <= set(NAMES), "a rule for a module that does not exist"
    names = TORCH_FREE | {name for name in NAMES if name.partition(".")[0] in TORCH_FREE_ROOMS}
    statements = [f"import tarpeg.{name}; assert 'torch' not in sys.modules, {name!r}" for name in names]
    done = run("; ".join(statements))
    assert done.returncode == 0, done.stderr


def test_lightning_comes_with_the_data_module_alone():
    done = run("import tarpeg; tarpeg.Split; tarpeg.RandomCrop; tarpeg.make_shards")
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stderr and "lightning" not in done.stderr
    assert "lightning" in run("import tarpeg; tarpeg.ShardDataModule").stderr


@pytest.mark.parametrize(
    ("body", "stream", "text"),
    [
        ("print('hello')", "stdout", "hello"),
        ("subprocess.Popen(['c++'])", "stderr", "a process was started: ['c++']"),
        ("tarpeg.decode_crop", "stderr", "TARPEG_NO_BUILD forbids"),
        ("import torch; torch.cuda.is_initialized = lambda: True", "stderr", "CUDA is initialised"),
        ("import lightning", "stderr", "lightning"),
    ],
)
def test_the_test_of_importing_would_notice(body, stream, text):
    assert text in getattr(run(f"import tarpeg, subprocess; {body}"), stream)


def test_public_names():
    for name in tarpeg.__all__:
        assert getattr(tarpeg, name).__doc__, f"{name} has no docstring"
    assert set(tarpeg.__all__) <= set(dir(tarpeg))
    imported = [node for node in ast.walk(tree_of(PACKAGE / "__init__.py")) if type(node) is ast.ImportFrom]
    typed = {alias.asname for node in imported if node.level for alias in node.names}
    assert typed == set(tarpeg.__all__), "type checkers see other names than there are"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tarpeg.nonsense
    with pytest.raises(AttributeError, match=r"'measure': .*tools/bench\.py"):
        _ = tarpeg.measure


def test_old_public_names_work_with_a_warning():
    for old, new in tarpeg._RENAMED.items():
        assert old not in tarpeg.__all__
        with pytest.warns(UserWarning, match=f"tarpeg.{old} is now tarpeg.{new}"):
            assert getattr(tarpeg, old) is getattr(tarpeg, new)


TOOLS = {
    "bench": [],  # benchmarks are not in the package
    "build_cache": ["build_cache", "verify_cache"],
    "doctor": ["diagnose"],
    "make_shards": ["make_shards"],
    "plan": ["plan_epoch"],
    "preview": ["comparison_sheet", "contact_sheet"],
}


def test_what_a_tool_does_is_a_public_function():
    """For users who have no checkout."""
    assert {path.stem for path in (ROOT / "tools").glob("*.py")} == set(TOOLS)
    assert {name.replace("-", "_") for name in COMMANDS} == set(TOOLS)
    for name in (name for names in TOOLS.values() for name in names):
        assert name in tarpeg.__all__ and len(getattr(tarpeg, name).__doc__.splitlines()) > 2, name


def test_train_and_tools_run_from_a_bare_checkout():
    for path in [ROOT / "train.py", *(ROOT / "tools").glob("*.py")]:
        lines = [line for line in path.read_text().splitlines() if "sys.path.insert(0," in line]
        assert len(lines) == 1 and '"datamodules"' in lines[0], path


@for_each(NATIVE)
def test_what_native_files_include(path):
    """Only ops/ and library.cpp include torch, besides the kernels for CUDA; nothing includes Python.h."""
    included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.M)
    assert not [name for name in included if name == "Python.h" or "pybind11" in name]
    assert "torch/extension.h" not in included
    if path.parent.name not in ("ops", "cuda", "native"):
        assert not [name for name in included if re.match(r"(torch|ATen|c10)/", name)]


def test_native_rooms():
    assert [path.name for path in (ROOT / "native").glob("*") if path.is_file()] == ["library.cpp"]
    rooms = {path.name for path in (ROOT / "native").iterdir() if path.is_dir()}
    assert rooms == {"ops", "jpeg", "png", "json", "image", "gather", "batch", "base", "cuda"}


def test_tests_mirror_the_rooms_and_import_only_helpers():
    places = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert places == {*ROOMS, "benchmarks", "repo", "helpers"}
    tests = {path.stem for path in TESTS if path.stem.startswith("test_")}
    assert len(tests) == sum(path.stem.startswith("test_") for path in TESTS), "two test files of one name"
    for path in TESTS:
        named = re.findall(r"^\s*(?:from|import)\s+(test_\w+|conftest)\b", path.read_text(), re.M)
        assert not [name for name in named if name != path.stem], f"{path}: move what it shares to helpers"


@for_each(CONF)
def test_every_target_is_a_public_name(path):
    from hydra.utils import get_object

    for target in re.findall(r"\b_target_: *([^\s,}]+)", path.read_text()):
        root, _, name = target.partition(".")
        assert root != "tarpeg" or name in tarpeg.__all__, target
        assert callable(get_object(target)), target


def test_every_promise_names_a_test_that_exists():
    files = {path.name: path for path in TESTS}
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "promises.md").read_text())
    assert len(named) > 20
    for file, test in named:
        assert file in files and f"def {test}(" in files[file].read_text(), f"{file}::{test}"


def test_the_design_lists_every_room_and_every_note():
    text = (ROOT / "docs" / "design.md").read_text()
    listed = set(re.findall(r"^\| \d? ?\|? ?`([\w/]+?)/?`", text, re.M))
    native = {f"native/{path.name}" for path in (ROOT / "native").iterdir() if path.is_dir()}
    assert {*ROOMS, "benchmarks", *native} <= listed

    # Every note is listed, and every listed note exists.
    listed = dict(re.findall(r"^\| ([\w -]+) \| `([\w/]+\.\w+)` \|", text.partition("## Notes")[2], re.M))
    assert len(listed) > 5
    for note, path in listed.items():
        assert f"Note [{note}]" in (ROOT / path).read_text(), f"{path} has no Note [{note}]"
    for path in (*NATIVE, *MODULES):
        for note in re.findall(r"Note \[([^\]]+)\]", path.read_text()):
            name = " ".join(re.sub(r"\n\s*(//|#)", " ", note).split())
            assert name in listed, f"list Note [{name}] of {path} in docs/design.md"

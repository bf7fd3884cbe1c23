"""The rules of the house: what may import what, what importing does, and how long a file may be."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tarpeg
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "datamodules" / "tarpeg"
MODULES = sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("benchmarks/*.py")])
NATIVE = sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h", ".cu"))
CONF = sorted((ROOT / "conf").rglob("*.yaml"))

# Imports run one way: a room may import those on higher-numbered floors, and its neighbours.
FLOORS = {
    "datamodule": 0,
    "monitor": 0,
    "loaderhost": 0,
    "replayhost": 0,
    **dict.fromkeys(("loader", "streamloader", "stallcosts", "verdict"), 1),
    **dict.fromkeys(("engines", "readahead", "reading", "requests", "split"), 2),
    **dict.fromkeys(("order", "crew"), 3),
    **dict.fromkeys(("shards", "files", "streaming", "sampling", "ops", "foreign"), 3),
    **dict.fromkeys(("tarindex", "crops", "labels", "batch", "delivery", "memory", "teams"), 4),
    **dict.fromkeys(("augment_ops", "image_checks"), 3),
    "_load": 5,
    "_cuda": 6,
    "_build": 6,
    "errors": 7,
}
LIGHTNING = {"datamodule", "monitor"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports anywhere in it: 'torch.utils', or '.ops' for one of the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            found |= {f".{node.module}"} if node.module else {f".{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_what_the_package_never_imports(path):
    forbidden = {"hydra", "omegaconf", "tools", "train", "datamodules", "tarpeg"}
    assert not roots(path) & forbidden
    assert ".reference" not in imports(path), "only tests import reference"
    if path.stem not in LIGHTNING:
        assert not roots(path) & {"lightning", "pytorch_lightning", "torchmetrics"}


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_the_library_does_not_need_its_benchmarks(path):
    reached = {name for name in imports(path) if name.startswith(".benchmarks")}
    assert not reached or path.stem in ("__init__", "speedcheck"), reached


def test_sampling_never_reaches_the_operators():
    seen, todo = set(), {"sampling"}
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= {found[1:] for found in imports(PACKAGE / f"{name}.py") if found[0] == "."} - seen
    assert not seen & {"ops", "_load", "_build", "reading"}, seen


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_run_one_way(path):
    if path.stem not in FLOORS:
        reached = {name[1:] for name in imports(path) if name[0] == "."} & {"datamodule", "loader", "reading"}
        assert path.stem == "__init__" or not reached, "a side room does not import the way through"
        return
    for name in imports(path):
        if name[0] == "." and name[1:] in FLOORS:
            assert FLOORS[name[1:]] >= FLOORS[path.stem], f"{path.stem} imports {name[1:]}"


def test_only_ops_uses_the_native_operators():
    for path in MODULES:
        assert path.stem in ("ops", "augment_ops") or "torch.ops.tarpeg." not in _code(path), path


def _code(path: Path) -> str:
    """The source without docstrings and comments."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            node.value = ast.Constant(value=None)
    return ast.unparse(tree)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_no_print_no_catch_all_no_unpickling_of_data(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("print", "eval", "exec"), f"{path}:{node.lineno}"
        if isinstance(node, ast.ExceptHandler):
            caught = "" if node.type is None else ast.unparse(node.type)
            is_reraised = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            # These two hand it over: it is raised where the answer is asked for.
            is_reraised = is_reraised or path.stem in ("teams", "crew")
            assert is_reraised or not re.search(r"^$|\bException\b|\bBaseException\b", caught), (
                f"{path}:{node.lineno} catches everything"
            )
    # These talk to their own children; nothing that comes from a shard is ever unpickled.
    assert path.stem in ("workers", "crew") or "pickle.load" not in _code(path)


IMPORT = """
import subprocess, sys
start = subprocess.Popen.__init__
def watch(self, command, *arguments, **named):
    # ldconfig: how torch's own import finds CUDA's driver
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
    settings = {**os.environ, "TARPEG_NO_BUILD": "1", "TARPEG_LIB_DIR": "/nonexistent"}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings)


def test_importing_the_package_does_nothing_else(tmp_path):
    done = run("import tarpeg; dir(tarpeg); tarpeg.__version__; tarpeg.DecodeError; tarpeg.Status")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("room", ["packing", "prepare", "cachepool", "doctor", "surroundings"])
def test_torch_does_not_come_with(room):
    """Children that draw photographs would start slowly; the doctor could not name a broken torch."""
    done = run(f"import tarpeg.{room}")
    assert done.returncode == 0, done.stderr
    assert "torch" not in done.stderr.split(",")


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
    names = {name: getattr(tarpeg, name) for name in tarpeg.__all__}
    assert all(value is not None for value in names.values())
    assert [name for name in dir(tarpeg) if not name.startswith("__")] == sorted(tarpeg.__all__)
    stub = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {
        alias.asname
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert typed == set(tarpeg.__all__), "what type checkers see is what there is"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tarpeg.nonsense


TOOLS = {
    "bench": ["measure"],
    "build_cache": ["build_cache", "verify_cache"],
    "doctor": ["diagnose"],
    "make_shards": ["make_shards"],
    "preview": ["contact_sheet"],
}


def test_what_a_tool_does_is_a_public_function():
    """For those who have no checkout."""
    assert {path.stem for path in (ROOT / "tools").glob("*.py")} == set(TOOLS)
    for name in (name for names in TOOLS.values() for name in names):
        assert name in tarpeg.__all__ and len(getattr(tarpeg, name).__doc__.splitlines()) > 2, name
    for name in tarpeg.__all__:
        assert getattr(tarpeg, name).__doc__, f"{name} has no docstring"


@pytest.mark.parametrize("path", NATIVE, ids=lambda path: path.name)
def test_what_native_files_include(path):
    included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.M)
    assert not [name for name in included if name == "Python.h" or "pybind11" in name]
    assert "torch/extension.h" not in included
    if re.match(r"(jpeg|header|resample|sample|tiles|transcode|markers)\w*\.", path.name):
        assert not [name for name in included if re.match(r"(torch|ATen|c10)/|checks\.h$", name)]


def test_files_are_short():
    package = [*MODULES, *NATIVE, *(ROOT / "tools").glob("*.py"), ROOT / "train.py", ROOT / "setup.py"]
    limits = dict.fromkeys(package, 300) | dict.fromkeys((ROOT / "tests").glob("*.py"), 400)
    lengths = {path: len(path.read_text().splitlines()) for path in limits}
    assert not {path: n for path, n in lengths.items() if n > limits[path]}


def targets(node, place=""):
    if isinstance(node, dict):
        if "_target_" in node:
            yield place, node["_target_"]
        for key, value in node.items():
            yield from targets(value, f"{place}.{key}")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from targets(value, f"{place}[{number}]")


@pytest.mark.parametrize("path", CONF, ids=lambda path: str(path.relative_to(ROOT / "conf")))
def test_every_target_is_a_public_name(path):
    from hydra.utils import get_object

    for place, target in targets(yaml.safe_load(path.read_text())):
        root, _, name = target.partition(".")
        if root == "tarpeg":
            assert name in tarpeg.__all__, f"{place}: {target}"
        assert callable(get_object(target)), f"{place}: {target}"


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "data").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_data_config_stands_alone(path):
    from omegaconf import OmegaConf

    content = OmegaConf.create(path.read_text())
    assert content._target_ == "tarpeg.ShardDataModule"
    assert "defaults" not in content
    for place in re.findall(r"\$\{([^}]*)\}", path.read_text()):
        assert place.startswith("."), (
            f"${{{place}}} is absolute: it would change its meaning in another project"
        )
    # Under any other key it means the same: relative references stay inside.
    elsewhere = OmegaConf.create({"my": {"input": content}})
    filled = OmegaConf.to_container(elsewhere, resolve=True, throw_on_missing=False)
    assert filled["my"]["input"]["train"]["shards"]


def test_train_and_tools_run_from_a_bare_checkout():
    for path in [ROOT / "train.py", *(ROOT / "tools").glob("*.py")]:
        lines = [line for line in path.read_text().splitlines() if "sys.path.insert(0," in line]
        assert len(lines) == 1 and '"datamodules"' in lines[0], path


def test_every_promise_names_a_test_that_exists():
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", (ROOT / "docs" / "promises.md").read_text())
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{file}::{test}"


def test_every_room_is_named_in_the_design():
    """In a table's first column, where a reader looks for it; and nothing is named there that is not."""
    text = (ROOT / "docs" / "design.md").read_text()
    package, native = text.split("## The rooms: `native/`")
    rooms = {path.stem for path in MODULES} - {"__init__"}
    kernels = {str(path.relative_to(ROOT / "native").with_suffix("")) for path in NATIVE}
    for part, files in ((package, rooms), (native, kernels)):
        cells = re.findall(r"^\| (`[^|]*`) \|", part.split("## Hard truths")[0], re.M)
        named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
        assert files - named == set(), "say in docs/design.md what these are for"
        assert named - files == set(), "docs/design.md names files that are not there"


def test_every_note_is_listed_and_every_listed_one_is_there():
    text = (ROOT / "docs" / "design.md").read_text()
    listed = dict(re.findall(r"^\| ([\w -]+) \| `([\w/]+\.\w+)` \|", text, re.M))
    assert len(listed) > 5
    for note, path in listed.items():
        assert f"Note [{note}]" in (ROOT / path).read_text(), f"{path} has no Note [{note}]"
    for path in (*NATIVE, *MODULES):
        for note in re.findall(r"Note \[([^\]]+)\]", path.read_text()):
            name = " ".join(re.sub(r"\n\s*(//|#)", " ", note).split())
            assert name in listed, f"list Note [{name}] of {path} in docs/design.md"

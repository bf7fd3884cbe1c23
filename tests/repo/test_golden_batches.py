"""Golden hashes: the bytes that tarpeg delivers, recorded on commit 4745c1f.

A restructuring must not change one byte. Every case (golden_cases.py, golden_operators.py, golden_files.py)
hashes shapes, types, memory order and bytes of what the public API returns; golden_batches.json holds the
recorded values. The vector code runs in one process and the portable code (TARPEG_PORTABLE=1) in another;
both must give these values. The pictures are files in golden/. golden/before holds files that tarpeg wrote at
that commit; today's code must open them as they are.

Renew after an intended change: TARPEG_RENEW_GOLDEN=1 pytest tests/repo/test_golden_batches.py

Limits. The values are from libjpeg-turbo 2.1.5; other versions may decode progressive, CMYK and damaged files
differently. Names that begin with "pillow/" depend on Pillow's encoder and drawing code and are skipped with
another version of it. Values with Affine or Mix depend on sin, cos and log of the C library and of torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden_files  # noqa: F401  (registers its cases)
import golden_operators  # noqa: F401
import numpy as np
import PIL
import pytest
import torch
from golden_cases import CASES, Sources, digest

pytestmark = pytest.mark.xdist_group("golden")  # in one process, which makes the files of the cases once
VALUES = Path(__file__).parent / "golden_batches.json"
PORTABLE = "TARPEG_PORTABLE"
OTHER = "test_same_bytes_by_the_other_code"
# Cases that deliver the same bytes in different ways; all others differ from each other.
EQUAL = [
    {"augment/mix", "augment/workers"},
    {"decode_batch/bilinear", "decode_batch/threads"},
    {"exact/transform", "exact/transform_workers"},
    {"feed/broken", "feed/broken_workers"},
    {"feed/random_resized_crop", "feed/readahead"},
    {"feed/test", "feed/val"},
    {"feed/threads", "feed/workers"},
    {"pillow/shards/photos", "pillow/shards/photos_workers"},
    {"resume/threads", "resume/workers"},
]


def value_of(name: str, sources: Sources) -> str:
    """Hash of a case."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of substituted images, Lightning's and torch's
        return digest(CASES[name](sources))


def is_comparable(name: str, golden: dict[str, Any]) -> bool:
    """Whether the recorded value holds for the installed version of Pillow."""
    return not name.startswith("pillow/") or golden["made_with"]["pillow"] == PIL.__version__


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Process that computes all values with the code that does not run here, and the file that it writes."""
    out = tmp_path_factory.mktemp("elsewhere") / "values.json"
    environment = {name: value for name, value in os.environ.items() if name != PORTABLE}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"XDG_CACHE_HOME": str(out.parent / "cache")}
    environment |= {} if PORTABLE in os.environ else {PORTABLE: "1"}
    command, errors = [sys.executable, str(Path(__file__).resolve()), str(out)], out.with_suffix(".txt")
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=errors.open("w")
    ) as process:
        yield process, out
        process.kill()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Sources]:
    """Shards and folders of the fixture pictures."""
    is_alone = "PYTEST_XDIST_WORKER" not in os.environ
    if is_alone and any(item.name == OTHER for item in request.session.items):
        request.getfixturevalue("elsewhere")  # early, so that both processes compute at the same time
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield Sources(folder)


@pytest.fixture(scope="module")
def golden(sources: Sources) -> dict[str, Any]:
    """Content of golden_batches.json; written first, and then failing, with TARPEG_RENEW_GOLDEN=1."""
    if os.environ.get("TARPEG_RENEW_GOLDEN"):
        values = {name: value_of(name, sources) for name in sorted(CASES)}
        made_with = {"pillow": PIL.__version__, "numpy": np.__version__, "torch": torch.__version__}
        VALUES.write_text(json.dumps({"made_with": made_with, "values": values}, indent=1) + "\n")
        pytest.fail(f"{len(values)} values were renewed. Run again without TARPEG_RENEW_GOLDEN.")
    content: dict[str, Any] = json.loads(VALUES.read_text())
    return content


def marked(name: str) -> Any:
    """A case, for the quick loop unless it is by worker processes."""
    return pytest.param(name, marks=pytest.mark.slow) if "worker" in name else name


@pytest.mark.parametrize("name", [marked(name) for name in CASES])
def test_same_bytes_as_recorded(name: str, sources: Sources, golden: dict[str, Any]) -> None:
    if not is_comparable(name, golden):
        pytest.skip(f"recorded with Pillow {golden['made_with']['pillow']}, this is {PIL.__version__}")
    assert value_of(name, sources) == golden["values"][name]


@pytest.mark.slow
def test_same_bytes_by_the_other_code(
    golden: dict[str, Any], elsewhere: tuple[subprocess.Popen[str], Path]
) -> None:
    """The portable code, or the vector code if this process runs the portable one."""
    process, out = elsewhere
    assert process.wait() == 0, out.with_suffix(".txt").read_text()[-3000:]
    found = json.loads(out.read_text())
    names = [name for name in golden["values"] if is_comparable(name, golden)]
    assert [name for name in names if found.get(name) != golden["values"][name]] == []


def test_every_case_is_recorded(golden: dict[str, Any]) -> None:
    assert set(golden["values"]) == set(CASES)
    assert [len({golden["values"][name] for name in names}) for names in EQUAL] == [1] * len(EQUAL)
    assert len(set(golden["values"].values())) == len(CASES) - len(EQUAL)


if __name__ == "__main__":
    _out = Path(sys.argv[1])
    _sources = Sources(_out.parent)
    _out.write_text(json.dumps({_name: value_of(_name, _sources) for _name in CASES}))

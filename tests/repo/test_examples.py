"""Public docstrings: all parameters are described, and the `>>>` examples are run as a user types them."""

from __future__ import annotations

import doctest
import enum
import inspect
import re

import numpy
import pytest
import tarpeg
import torch
from helpers.pictures import jpeg as picture

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples(name: str, names: dict[str, object] | None = None) -> list[doctest.DocTest]:
    """Examples of a public name and of its public members."""
    value = getattr(tarpeg, name)
    module = value if inspect.ismodule(value) else inspect.getmodule(value)
    found = doctest.DocTestFinder().find(value, name, module=module, globs=names or {}, extraglobs={})
    return [test for test in found if test.examples and "._" not in test.name]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> dict[str, object]:
    """What the examples may use without preparing it.

    `shards`: a folder with two shards of 16 labelled photographs each. `folder`: a folder with one sub-folder
    of 8 JPEGs for each of the classes "cat" and "dog". `jpeg`: uint8 tensor, the bytes of a JPEG of 400x600.
    `tmp`, an empty folder, is added by the test, one for each docstring.
    """
    shards = tmp_path_factory.mktemp("shards")
    photos = tarpeg.Photos(size=(150, 200), classes=4)
    tarpeg.make_shards(shards, photos, 32, samples_per_shard=16, workers=0)
    folder = tmp_path_factory.mktemp("folder")
    for number in range(16):
        path = folder / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(picture("420", 120, 160, seed=number))
    image = torch.frombuffer(bytearray(picture("420", 400, 600)), dtype=torch.uint8)
    modules = {"tarpeg": tarpeg, "torch": torch, "numpy": numpy}
    return {**modules, "shards": shards, "folder": folder, "jpeg": image}


@pytest.mark.parametrize("name", tarpeg.__all__)
def test_the_examples_of_a_name_run(name, prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, test in enumerate(examples(name, prepared)):
        (tmp_path / str(number)).mkdir()
        test.globs["tmp"] = tmp_path / str(number)
        shown: list[str] = []
        failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=shown.append)
        assert not failed, "".join(shown)


def test_every_name_has_an_example():
    lacking = {name for name in tarpeg.__all__ if not examples(name)}
    assert not lacking, "these need an example in their docstring"


def undocumented(value: object) -> set[str]:
    """Parameters of a function or class that its docstring does not describe in `Args:` or `Attributes:`."""
    if inspect.ismodule(value) or (isinstance(value, type) and issubclass(value, (BaseException, enum.Enum))):
        return set()
    section = re.search(r"^(?:Args|Attributes):\n((?: +.*\n|\n)*)", f"{inspect.getdoc(value)}\n", re.M)
    described = re.findall(r"^    \*{0,2}(\w+(?:, \w+)*)(?: \(.*\))?:", section[1] if section else "", re.M)
    names = {name for names in described for name in names.split(", ")}
    return {*inspect.signature(value).parameters} - names - {"self", "args", "kwargs"}


def test_every_parameter_is_described():
    lacking = {name: undocumented(getattr(tarpeg, name)) for name in tarpeg.__all__}
    lacking = {name: sorted(parameters) for name, parameters in lacking.items() if parameters}
    assert not lacking, f"describe these parameters in `Args:`: {lacking}"

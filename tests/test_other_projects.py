"""Projects outside this checkout: the examples, in fresh environments made from a wheel and an archive."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue
from packed import ROOT, attempt, run

EXAMPLES = ROOT / "examples"
SHARDS = ("data.train.shards=../photos/train-*.tar", "data.val.shards=../photos/val-*.tar")
MAKE = """
import tarpeg
for prefix, samples in (("train", 48), ("val", 16)):
    tarpeg.make_shards("photos", tarpeg.Photos(size=96), samples, prefix=prefix, workers=0)
print(tarpeg.__file__)
"""


class Project:
    """The examples, copied to where nothing of the checkout is, with shards beside them."""

    def __init__(self, python: Path, place: Path) -> None:
        self.python, self.place = python, place
        shutil.copytree(EXAMPLES, place, ignore=shutil.ignore_patterns("outputs", "multirun", "__pycache__"))
        package = Path(run([str(python), "-c", MAKE], cwd=place, TARPEG_NO_BUILD="1").strip()).parent
        assert package.is_relative_to(python.parents[1]), "not the editable install"
        assert (package / "_lib").is_dir()

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        path = self.place / script
        return attempt([str(self.python), path.name, *arguments], path.parent, TARPEG_NO_BUILD="1")

    def good(self, script: str, *arguments: str) -> str:
        done = self.run(script, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def bad(self, script: str, *arguments: str) -> str:
        done = self.run(script, *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def project(packed, tmp_path_factory) -> Project:
    return Project(packed.python, tmp_path_factory.mktemp("projects") / "examples")


slow = [pytest.mark.slow, pytest.mark.timeout(600)]


def marked(test):
    for mark in slow:
        test = mark(test)
    return test


@marked
def test_overrides(project):
    told = project.good(
        "other_project/train.py", *SHARDS, "data.batch_size=8", "augment=heavy", "net.width=8"
    )
    assert re.search(r"^accuracy [01]\.\d{3} after 12 steps$", told, re.M), told


@marked
def test_multirun(project):
    jobs = ("augment=heavy,light", "trainer.max_epochs=1", "data.workers=0")
    told = project.good("other_project/train.py", "--multirun", *SHARDS, *jobs)
    assert len(re.findall(r"^accuracy [01]\.\d{3} after 1 steps$", told, re.M)) == 2, told
    kept = sorted((project.place / "other_project" / "multirun").glob("*/*/?/.hydra/overrides.yaml"))
    assert ["augment=heavy" in path.read_text() for path in kept] == [True, False]


@marked
def test_help_and_the_configuration(project):
    told = project.good("other_project/train.py", "--help")
    for group in ("data", "augment"):
        names = ", ".join(sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml")))
        assert f"\n{group}: {names}\n" in told + "\n"
    composed = OmegaConf.create(project.good("other_project/train.py", "--cfg", "job", "net.lr=0.5"))
    assert list(composed) == ["data", "augment", "net", "trainer"]
    assert (composed.net.lr, composed.data._target_) == (0.5, "tarpeg.ShardDataModule")


@marked
@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "data.batchsize=8",
            "Could not override 'data.batchsize'.\nTo append to your config use +data.batchsize=8",
        ),
        (
            "augment=havy",
            "Could not find 'augment/havy'\n\nAvailable options in 'augment':\n\tarticle\n\tdali\n",
        ),
        ("net.width=8", "Missing mandatory value: data.train.shards"),
    ],
)
def test_what_is_wrong_is_told_by_hydra(project, override, told):
    words = project.bad("other_project/train.py", override)
    assert told in words
    assert words.rstrip().endswith(
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
    )


@marked
def test_without_hydra(project):
    told = project.good("without_hydra.py", "photos/train-*.tar", "photos/val-000000.tar")
    assert re.search(r"^accuracy [01]\.\d{3} after 2 steps$", told, re.M), told


@marked
def test_plain_pytorch(project):
    told = project.good("plain_pytorch.py", "photos/train-*.tar", "photos/val-000000.tar")
    assert re.fullmatch(r"(epoch [01]: accuracy [01]\.\d{3}\n){2}", told), told


@marked
def test_from_an_archive(packed, tmp_path):
    project = Project(packed.python_of_sdist, tmp_path / "examples")
    told = project.good("other_project/train.py", *SHARDS, "trainer.max_epochs=1", "data.workers=0")
    assert re.search(r"^accuracy [01]\.\d{3} after 1 steps$", told, re.M), told


def composed(*overrides: str):
    with initialize_config_dir(str(EXAMPLES / "other_project" / "conf"), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "augment").glob("*.yaml")))
def test_every_augmentation_is_whole_in_another_project(name):
    overrides = ["augment.mix.classes=10"] if name == "mix" else []
    shards = ["data.train.shards=x.tar", "data.val.shards=x.tar"]
    data = instantiate(composed(f"augment={name}", *overrides, *shards).data)
    assert type(data.augment).__name__ == "Augment"


def test_mixing_asks_for_the_number_of_classes():
    config = composed("augment=mix", "data.train.shards=x.tar", "data.val.shards=x.tar")
    with pytest.raises(InstantiationException, match=r"classes=None must be the number of classes") as caught:
        instantiate(config.data)
    assert "full_key: data.augment.mix" in str(caught.value)
    config = composed(
        "augment=light", "+augment.erase.probability=1", "data.train.shards=x", "data.val.shards=x"
    )
    with pytest.raises(
        InstantiationException, match=r"erase=.* needs a _target_: \+augment\.erase\._target_="
    ):
        instantiate(config.data)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "data").glob("*.yaml")))
def test_every_data_config_is_whole_in_another_project(name):
    config = composed(f"data={name}")
    missing = OmegaConf.missing_keys(config)
    assert missing == {
        "shards": {"data.train.shards", "data.val.shards"},
        "folder": {"data.prepare.root"},
    }.get(name, set())
    if missing:
        with pytest.raises(MissingMandatoryValue, match=sorted(missing)[0]):
            instantiate(config.data)
    else:
        assert type(instantiate(config.data)).__name__ == "ShardDataModule"


def test_a_file_of_ones_own_adds_to_a_group(tmp_path):
    shutil.copytree(EXAMPLES / "other_project" / "conf", tmp_path / "conf")
    (tmp_path / "conf" / "data").mkdir()
    (tmp_path / "conf" / "data" / "mine.yaml").write_text("defaults: [shards]\ntrain: {shards: mine.tar}\n")
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        config = compose("config", ["data=mine"])
    assert (config.data.train.shards, config.data.train.flip) == ("mine.tar", 0.5)

"""Projects outside this checkout: the examples, in fresh environments with a wheel or an archive."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.checkouts import ROOT
from helpers.forks import fork
from helpers.packed import attempt, outside, run
from omegaconf import OmegaConf

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("packed")]
EXAMPLES = ROOT / "examples"
SHARDS = ("data.train.shards=../photos/train", "data.val.shards=../photos/val")
(COMMANDS,) = re.findall(r"```sh\n(.*?)\n```", (EXAMPLES / "other_project" / "README.md").read_text(), re.S)
COMMANDS = [line for line in COMMANDS.splitlines() if line.startswith("python ")]
MAKE = """
import tarpeg
for prefix, samples in (("train", 48), ("val", 16)):
    tarpeg.make_shards(f"photos/{prefix}", tarpeg.Photos(size=96), samples, prefix=prefix, workers=0)
print(tarpeg.__file__)
"""


class Project:
    """The examples, copied outside the checkout, with shards beside them."""

    def __init__(self, python: Path, place: Path) -> None:
        self.python, self.place = python, place
        shutil.copytree(EXAMPLES, place, ignore=shutil.ignore_patterns("outputs", "multirun", "__pycache__"))
        package = Path(run([str(python), "-c", MAKE], cwd=place, TARPEG_NO_BUILD="1").strip()).parent
        assert package.is_relative_to(python.parents[1]), "not the editable install"
        assert (package / "_lib").is_dir()

    def run(
        self, script: str, *arguments: str, status: int = 0, alone: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a fork of the environment's interpreter, or alone, in a new one."""
        path = self.place / script
        command = [path.name, *arguments]
        if alone:
            done = attempt([str(self.python), *command], path.parent, TARPEG_NO_BUILD="1")
        else:
            done = fork(str(self.python), command, path.parent, outside(TARPEG_NO_BUILD="1"))
        assert done.returncode == status, done.stdout + done.stderr
        return done


@pytest.fixture(scope="module")
def project(packed, tmp_path_factory) -> Project:
    return Project(packed.python, tmp_path_factory.mktemp("projects") / "examples")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_the_page(project, command):
    script, *arguments = shlex.split(command.partition(" # ")[0].replace("/data/", "../photos/"))[1:]
    if "--cfg" not in arguments:
        arguments += ["trainer.max_epochs=1", "data.workers=0"]
        arguments += ["data.prepare.train=64", "data.prepare.val=16"] * ("data=synthetic" in arguments)
    output = project.run(f"other_project/{script}", *arguments).stdout
    steps = [int(number) for number in re.findall(r"^accuracy [01]\.\d{3} after (\d+) steps$", output, re.M)]
    if "--cfg" in arguments:
        composed = OmegaConf.create(output)
        assert list(composed) == ["data", "augment", "net", "trainer"]
        assert composed.data._target_ == "tarpeg.ShardDataModule"
    elif "--multirun" in arguments:
        assert steps == [1, 1]
        kept = sorted((project.place / "other_project" / "multirun").glob("*/*/?/.hydra/overrides.yaml"))
        assert [re.findall("augment=(.*)", path.read_text()) for path in kept] == [["none"], ["light"]]
    else:
        assert steps == [2 if "data.batch_size=32" in arguments else 1]


def test_help_names_the_groups(project):
    output = project.run("other_project/train.py", "--help").stdout
    for group in ("data", "augment"):
        names = ", ".join(sorted(path.stem for path in (ROOT / "conf" / group).glob("*.yaml")))
        assert f"\n{group}: {names}\n" in output + "\n"


NO_KEY = "Could not override 'data.batchsize'.\nTo append to your config use +data.batchsize=8"
NO_FILE = "Could not find 'augment/havy'\n\nAvailable options in 'augment':\n\tarticle\n\taugmix\n"
NO_VALUE = "Missing mandatory value: data.train.shards"
WRONG = {"data.batchsize=8": NO_KEY, "augment=havy": NO_FILE, "net.width=8": NO_VALUE}


@pytest.mark.parametrize(("override", "output"), WRONG.items())
def test_wrong_overrides_are_errors_of_hydra(project, override, output):
    words = project.run("other_project/train.py", override, status=1).stderr
    assert output in words
    hint = "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace."
    assert words.rstrip().endswith(hint)


@pytest.mark.parametrize(
    ("script", "printed"),
    [
        ("without_hydra.py", r"(?s).*^accuracy [01]\.\d{3} after 2 steps$.*"),
        ("plain_pytorch.py", r"(epoch [01]: accuracy [01]\.\d{3} of 16 images\n){2}"),
    ],
)
def test_scripts_without_hydra(project, script, printed):
    output = project.run(script, "photos/train", "photos/val/val-*.tar", alone=True).stdout
    assert re.fullmatch(printed, output, re.M), output


def test_from_an_archive(packed, tmp_path):
    project = Project(packed.python_of_sdist, tmp_path / "examples")
    settings = (*SHARDS, "trainer.max_epochs=1", "data.workers=0")
    output = project.run("other_project/train.py", *settings, alone=True).stdout
    assert re.search(r"^accuracy [01]\.\d{3} after 1 steps$", output, re.M), output

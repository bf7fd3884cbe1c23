"""Runs every command and every Python block of the pages, at a reduced size, in a copy of this checkout."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.checkouts import ROOT, copy, library, tracked
from helpers.data_sets import coco, devkit, layout, masks
from helpers.forks import run_forked
from helpers.pages import PAGES, PROGRAM, TUTORIAL, blocks, commands
from helpers.pictures import jpeg, saved
from helpers.scripts import PATHS, write_program
from helpers.small_tars import write_tar
from PIL import Image

# Overrides for a small training; CENTER is for validation crops that have 'shorter'.
TRAINING = (
    "trainer.max_epochs=1 trainer.accelerator=cpu trainer.devices=1 logger=none ~callbacks.checkpoint "
    "data.workers=0 data.threads=0 data.batch_size=8 data.train.crop.size=32 data.val.crop.size=32"
)
PHOTOS = "data.prepare.train=16 data.prepare.val=8"
CENTER = "data.val.crop.shorter=36"
# Each command of the pages, and what the test adds to it. A command that is on no page is an error too.
REDUCED = {
    "python train.py --help": "",
    "python train.py experiment=article": f"{TRAINING} {PHOTOS}",
    "python train.py augment=heavy": f"{TRAINING} {PHOTOS} {CENTER}",
    "python tools/build_cache.py source=/data/pets dest=/data/cache": "workers=0",
    "python train.py data=shards 'data.train.shards=/data/cache/train-*.tar' "
    "'data.val.shards=/data/cache/val-*.tar' model.net.num_classes=37": f"{TRAINING} {CENTER}",
    "python tools/build_cache.py 'source=\"s3://bucket/train-{000..146}.tar\"' dest=/data/big "
    "samples_per_shard=5000 shuffle=true": "workers=0",
    "python tools/build_cache.py verify=true dest=/data/big": "workers=0",
    "python train.py data=folder data.prepare.root=/data/pets data.prepare.out=/data/pets-shards "
    "model.net.num_classes=37": f"{TRAINING} {CENTER}",
    'make bench ARGS="suite=crop"': "images=2 rounds=1",
    'make bench ARGS="suite=resize"': "images=2 rounds=1",
    'make bench ARGS="suite=loader"': "images=8 rounds=1 loader.seconds=0.05 loader.epochs=0 "
    "loader.workers=1 'loader.only=[\\\"tiled, threads\\\"]'",
    "python train.py experiment=resnet50_v2 'data.train.shards=/data/cache/train-*.tar' "
    "'data.val.shards=/data/cache/val-*.tar'": f"{TRAINING} {CENTER} data.global_batch_size=8 "
    "model.net._target_=torchvision.models.shufflenet_v2_x0_5",
    "python train.py -v": f"{TRAINING} {PHOTOS} {CENTER}",
    "make help": "",
    "make docs": "",
    "python tools/doctor.py": "speed=false",
    "python train.py profiler=torch data.workers=0": f"{TRAINING} {PHOTOS} {CENTER} data.batch_size=2",
    "python tools/preview.py data=synthetic augment=heavy": PHOTOS,
    "python tools/plan.py data=shards 'data.train.shards=/data/cache/train-*.tar' '~data.train.crop' "
    "'+data.train.crop={_target_: tarpeg.AspectBuckets, upscale: true}'": "",
    "python docs/draw_fidelity.py": "",
    "python docs/measure_codecs.py": "5",
}
# Commands that are not run, with the reason.
EXEMPT = {
    "make train": "installs PyTorch and trains for minutes; test_train.py runs the same",
    "make test": "the fast tests themselves",
    "make test-all": "the slow tests themselves",
    "make setup": "installs PyTorch; CI begins with it",
    "make lint": "CI runs it",
    "make build": "test_library.py compiles",
    "make fuzz": "installs clang, then runs for FUZZ_SECONDS",
    "make soak": "test_soak.py runs a minute of it",
    "make asan": "compiles with the sanitisers and runs tests, for minutes",
    ".ci/run": "runs all of this",
    "pip install .": "test_packaging.py installs wheels",
    "source .venv/bin/activate": "the Python here is in an environment already",
}
EXTRA = re.compile(r'pip install (?:-e )?"(?:tarpeg|\.)\[(\w+)\]"')  # needs the network: only looked up
# Places of the reader's own data in the pages, and their places in this test.
HERE = {"s3://bucket/": "file://PLACE/bucket/", "{000..146}": "{000..001}", "/data/": "PLACE/data/"}
# Replacements that make scripts and Python blocks quick.
QUICK = {
    "docs/draw_fidelity.py": {
        'Photos(size="big"), 12': 'Photos(size="big"), 5',
        "*(240, 220, 200, 180, 160, 144, 131, 120, 103, 90, 80, 73, 72, 69, 66, 63, 60),": "",
    },
    "README.md": {"max_epochs=10": "max_epochs=1, accelerator='cpu', logger=False"},
    "docs/augmenting.md": {'device="cuda"': 'device="cpu"', "range(3)": "range(1)"},
    "docs/coming-from.md": {"workers=8": "workers=1"},
    "docs/feeding.md": {
        "from transformers import AutoTokenizer": "from helpers.captions import transformers_tokenizer",
        'AutoTokenizer.from_pretrained("openai/clip-vit-base-patch32")': "transformers_tokenizer()",
    },
}
# Code before a page's blocks, and after them: take a batch of every split that they define.
SERVED = """
import lightning, tarpeg, torch, torchvision

class Served(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torchvision.models.resnet18(num_classes=2)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.net(batch.image), batch.label)

    def predict_step(self, batch, _):
        return self.net(batch.image).softmax(1)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)

tarpeg.FolderShards("data/pets", "data/served")()
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False)
train, val = (tarpeg.Split(f"data/served/{part}-*.tar", crop) for part, crop in (
    ("train", tarpeg.RandomResizedCrop(64)), ("val", tarpeg.CenterCrop(64, shorter=70))))
_options = {"augment": tarpeg.Augment([0.4] * 3, [0.3] * 3), "batch_size": 2, "workers": 0}
trainer.fit(Served(), datamodule=tarpeg.ShardDataModule(train, val, **_options))
trainer.save_checkpoint("data/run.ckpt")
"""
BEFORE = {
    "README.md": f"{PATHS}import lightning, torch\nfrom helpers.training import Net\nmodel = Net()\n",
    "docs/serving.md": SERVED,
    "docs/feeding.md": PATHS,
}
# What the blocks of a page have found: classes and probabilities of images, as a Trainer predicts them.
CHECKS = {
    "docs/serving.md": """
_data = tarpeg.ShardDataModule(predict=tarpeg.Split("data/photos", val.crop, target=None), **_options)
_shares = torch.cat(trainer.predict(Served(), datamodule=_data, ckpt_path="data/run.ckpt"))
_expected = [(["class0", "class1"][row.argmax()], float(row.max())) for row in _shares]
_single = [classify(path.read_bytes()) for path in sorted(Path("data/photos").iterdir())]
assert len(_expected) == 3 and labels.tolist() == _shares.argmax(1).tolist()
for _bound, _found in ((1e-5, found), (0.02, _single)):
    for (_name, _share), (_other, _wanted) in zip(_found, _expected, strict=True):
        assert _name == _other and abs(_share - _wanted) < _bound, (_found, _expected)
import io as _io
from PIL import Image as _Image
_png = _io.BytesIO()
_Image.open("data/photos/0.jpg").save(_png, "png")
assert classify_all([_png.getvalue()])[0][0] == _expected[0][0]
"""
}
AFTER = """
import tarpeg as _t
_seen = 0
for _split in [_value for _value in [*globals().values()] if isinstance(_value, _t.Split)]:
    if not _split.streaming:
        _kind = "train" if _split.repeats > 1 else "predict"
        _data = _t.ShardDataModule(**{_kind: _split}, batch_size=2, workers=0, threads=0)
        _batch = next(iter(getattr(_data, f"{_kind}_dataloader")()))
        assert len(_batch[1]) == 2 or _split.patches is not None  # of those, the tokens count
        _seen += 1
print("took batches of", _seen)
"""


# The end of a training, as README shows it.
TRAINED = re.compile(
    r"^data: .*\n(?:to go on from here.*: python train\.py .*ckpt_path=\S+.*\n)?"
    r"trained: \d+ steps, \d+ images/s, \d+% of the time waiting for data, validation accuracy \d",
    re.M,
)


def all_commands() -> list[str]:
    return list(dict.fromkeys(command for page in PAGES if page != TUTORIAL for command in commands(page)))


def test_every_command_is_listed_and_every_listed_one_exists():
    found = {command for command in all_commands() if not EXTRA.fullmatch(command)}
    assert found - {*REDUCED, *EXEMPT} == set(), "add these to REDUCED, or to EXEMPT with the reason"
    assert {*REDUCED, *EXEMPT} - found == set(), "no page has these any more"
    assert len(EXEMPT) <= 12


def test_the_end_of_a_training_is_as_shown():
    assert any(TRAINED.search(block.text) for block in blocks("README.md") if block.language == "text")


def test_extras_and_targets_are_there():
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
    named = [match[1] for command in all_commands() if (match := EXTRA.fullmatch(command))]
    assert named and set(named) <= set(extras)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    used = [command.split()[1] for command in all_commands() if command.startswith("make ")]
    assert used and set(used) <= set(targets)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_have_a_language(page):
    for block in blocks(page):
        where = f"{page}:{block.line}"
        assert block.language in ("sh", "python", "yaml", "text"), f"{where}: a block is one of these"
        if block.language == "text":  # what is shown, not typed
            assert not any(PROGRAM.match(line.strip()) for line in block.text.splitlines()), where
    text = (ROOT / page).read_text()
    assert all(old in text for old in QUICK.get(page, {})), "QUICK is out of date"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in (link for link in links if not link.startswith("http")):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), f"{page}: {link}"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in anchors, f"{page}: {link}"


def messages() -> str:
    """Every text of the package's sources, one per line, with a NUL for each value that is filled in."""
    found = []
    for path in (ROOT / "datamodules").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "\0" for part in parts]
            if all(isinstance(text, str) for text in texts) and texts != ["\0"]:
                found.append(re.sub(r"%[0-9.]*[sdgf]", "\0", "".join(texts)).replace("\n", " "))
    for path in (ROOT / "native").rglob("*.[ch]*"):
        for call in re.findall(r"STD_TORCH_CHECK\((.*?)\);", path.read_text(), re.S):
            found.append("\0".join(re.findall(r'"([^"\n]*)"', call)))
    return "\n".join(found)


def test_messages_of_troubleshooting_are_those_of_the_package():
    text = (ROOT / "docs/troubleshooting.md").read_text()
    shown = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^Message: .*$", text, re.M)))
    assert len(shown) > 30
    known = messages()
    missing = []
    for message in shown:  # each begins where a text of the sources begins, or behind a value
        parts = [re.escape(part) for part in message.split("...")]
        if not re.search(r"(?m)(?:^|\0)\W*?" + "\0.{0,40}?".join(parts), known):
            missing.append(message)
    assert not missing, "no source of the package has these"


def fill(place: Path) -> None:
    """Make the reader's data: a folder with classes, shards in a bucket, photographs."""
    data = place / "data"
    for number in range(16):
        part = "val" if number % 4 == 3 else "train"
        path = data / "pets" / part / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg("420", 80, 96, seed=number))
    fields = {"age": 4.5, "annotation": {"category": 3}, "breed": 2, "label": 1, "points": [[30, 40]]}
    fields["objects"] = [{"bbox": [40, 60, 200, 100], "category_id": 18}]
    about = json.dumps(fields).encode()
    for folder, names in (("bucket", ["train-000", "train-001"]), ("data/shards", ["train-000"])):
        (place / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            members = []
            mask = saved(Image.new("L", (320, 300), 3), "PNG")
            for number in range(20):
                key, image = f"{name}-{number}", jpeg("420", 300, 320, seed=number)
                members += [(f"{key}.jpg", image), (f"{key}.cls", b"%d" % (number % 4))]
                members += [(f"{key}.json", about), (f"{key}.txt", b"a caption")]
                members += [(f"{key}.png", mask)]
            write_tar(place / folder / f"{name}.tar", members)
    for folder, names in (("stereo", ["left", "right"]), ("stories", ["0", "1", "2"])):
        (data / folder).mkdir()
        members = []
        for number in range(8):
            for name in names[: len(names) - number % 2]:
                members.append((f"{number}.{name}.jpg", jpeg("420", 300, 320, seed=number)))
            members += [(f"{number}.right.jpg", members[-1][1])] * (folder == "stereo" and number % 2)
            members.append((f"{number}.cls", b"1"))
        write_tar(data / folder / "train-000.tar", members)
    coco(data / "coco")
    devkit(data)
    layout(data / "yolo")
    masks(data, {f"{number}_mask": (64, 80) for number in range(3)})
    np.save(data / "chosen.npy", np.array([0, 2, 5]))
    np.save(data / "weights.npy", np.arange(1.0, 21.0))
    (data / "photos").mkdir()
    for number in range(3):
        (data / "photos" / f"{number}.jpg").write_bytes(jpeg("444", 64, 80, seed=number))
    (place / "labels.csv").write_text("file,age,height\n0.jpg,4,30\n1.jpg,5,31\n2.jpg,6,32\n")
    (place / "photo.jpg").write_bytes(jpeg("420", 400, 500))


class Reader:
    """Runs the commands of the pages in its own checkout; each command once."""

    def __init__(self, place: Path) -> None:
        self.place = copy(place, tracked())
        fill(place)
        for path, changes in QUICK.items():
            if path.endswith(".py"):
                (place / path).write_text(self._changed((place / path).read_text(), changes))
        venv = place / "venv"  # make finds this Python there, and nothing to install
        (venv / "bin").mkdir(parents=True)
        write_program(venv / "bin" / "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (venv / ".stamp").touch()
        settings = {"TARPEG_LIB_DIR": library(), "OMP_WAIT_POLICY": "PASSIVE", "COLUMNS": "120"}
        self._environment = {"PYTHONPATH": "", **settings}
        # What `make test-all ARGS=...` gives to its children is not typed by the reader.
        self._unset = {"ARGS", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL"}
        self._done: dict[str, subprocess.CompletedProcess[str]] = {}

    def _run(self, line: str) -> subprocess.CompletedProcess[str]:
        program, *arguments = shlex.split(line)
        if program == "python":
            done = run_forked(*arguments, cwd=self.place, **self._environment)
            done.stdout += done.stderr
            return done
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        inherited = {name: value for name, value in os.environ.items() if name not in self._unset}
        settings = inherited | self._environment
        return subprocess.run(["bash", "-c", line], cwd=self.place, env=settings, text=True, **streams)

    def _changed(self, text: str, changes: dict[str, str]) -> str:
        for old, new in changes.items():
            assert old in text, f"QUICK: {old!r} is not there any more"
            text = text.replace(old, new)
        return text

    def _here(self, text: str) -> str:
        for theirs, ours in HERE.items():
            text = text.replace(theirs, ours.replace("PLACE", "\0"))
        return text.replace("\0", str(self.place))

    def _build(self, text: str) -> None:
        """Run the commands that make the caches which `text` reads."""
        for command in REDUCED:
            made = re.search(r"dest=(\S+)", command)
            if made and "source=" in command and made[1] in text and command != text:
                self.type(command)

    def type(self, command: str) -> subprocess.CompletedProcess[str]:
        if command not in self._done:
            self._build(command)
            added = REDUCED[command]
            if command.startswith("make "):
                line = command.replace('ARGS="', f'ARGS="{added} ') + f" VENV={self.place}/venv"
            else:
                line = f"{command} {added}"
            self._done[command] = self._run(self._here(line))
        return self._done[command]

    def blocks(self, page: str) -> subprocess.CompletedProcess[str]:
        text = "".join(block.text for block in blocks(page) if block.language == "python")
        self._build(text)
        source = self._here(self._changed(text, QUICK.get(page, {})))
        start = f"import sys\nsys.path.insert(0, {str(self.place / 'datamodules')!r})\n"
        path = self.place / f"{Path(page).stem}_blocks.py"
        path.write_text(start + BEFORE.get(page, "") + source + CHECKS.get(page, "") + AFTER)
        return self._run(f"python {path}")


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return Reader(tmp_path_factory.mktemp("reader"))


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("command", REDUCED)
def test_a_command_works(reader, command):
    done = reader.type(command)
    assert done.returncode == 0, done.stdout
    if "train.py" in command and "--help" not in command:
        assert TRAINED.search(done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page != TUTORIAL and any(each.language == "python" for each in blocks(page))],
)
def test_the_python_of_a_page_runs(reader, page):
    done = reader.blocks(page)
    assert done.returncode == 0, done.stdout

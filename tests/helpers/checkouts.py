"""Copies of this checkout, and trainings in them in a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from helpers.forks import run_forked

ROOT = Path(__file__).resolve().parents[2]
TRAINER = ("max_epochs=1", "log_every_n_steps=1", "accelerator=cpu", "devices=1")
CROPS = ("data.train.crop.size=32", "data.val.crop.size=32")
SMALL = (*(f"trainer.{setting}" for setting in TRAINER), *CROPS, "data.workers=1")
PHOTOS = ("data.prepare.train=60", "data.prepare.val=40", "data.prepare.photos.size=64", "data.batch_size=20")
TINY = (*SMALL, *PHOTOS, "data.val.crop.shorter=36")


def tracked() -> list[str]:
    """Tracked and new files of the checkout, without ignored ones."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return [name for name in listed.splitlines() if os.path.lexists(ROOT / name)]


def copy(place: Path, names: list[str]) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


def train(place: Path, *arguments: str, **environment: str):
    """Run train.py in `place`, without this checkout on the path."""
    settings = {"PYTHONPATH": "", "COLUMNS": "120", **environment}
    return run_forked("train.py", *arguments, cwd=place, **settings)


def library() -> str:
    """Directory of this checkout's library, so that copies need not compile it."""
    from tarpeg.ops import library

    return str(library.library_path().parent)

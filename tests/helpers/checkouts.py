"""Copies of this checkout, and trainings in them in a separate process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TRAINER = (
    "trainer.max_epochs=1",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
)
SMALL = (*TRAINER, "data.train.crop.size=32", "data.val.crop.size=32", "data.workers=1")
PHOTOS = ("data.prepare.train=60", "data.prepare.val=40", "data.prepare.photos.size=64", "data.batch_size=20")
TINY = (*SMALL, *PHOTOS, "data.val.crop.shorter=36")


def tracked() -> list[str]:
    """Tracked and new files of the checkout, without ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    return [name for name in listed.stdout.splitlines() if os.path.lexists(ROOT / name)]


def copy(place: Path, names: list[str]) -> Path:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name, follow_symlinks=False)
    return place


def train(place: Path, *arguments: str, home: Path | None = None, **environment: str):
    """Run train.py in `place`, without this checkout on the path."""
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if home is not None:
        settings |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    return subprocess.run(
        [sys.executable, "train.py", *arguments],
        cwd=place,
        env={**settings, "COLUMNS": "120", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )


def library() -> str:
    """Directory of this checkout's library, so that copies need not compile it."""
    from tarpeg.ops import library

    return str(library.library_path().parent)

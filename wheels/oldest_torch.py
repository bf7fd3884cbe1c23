"""Fetch the oldest supported torch: python wheels/oldest_torch.py MACHINE [FILE...] prints its directory.

The directory, in build/, holds the headers and the given files of the wheel for this machine, which are read
by HTTP ranges, without the rest. Exit status 77: the wheel cannot be fetched, for the reason on stderr.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import fsspec
from filelock import FileLock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg.ops.compiler import OLDEST_TORCH

ROOT = Path(__file__).resolve().parents[1]
VERSION = ".".join(map(str, OLDEST_TORCH)) + ".0"
FILES = ("torch/include/torch/", "torch/version.py", "torch/__init__.py")


def url_of_wheel(machine: str) -> str:
    """Return the address at which pip would download the wheel; raise OSError if it finds none."""
    kind = ["--only-binary=:all:", "--python-version=3.11", f"--platform=manylinux_2_28_{machine}"]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--report=-", *kind]
    command += ["--no-deps", "--ignore-installed", "--target=nowhere", f"torch=={VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip())
    url: str = json.loads(done.stdout)["install"][0]["download_info"]["url"]
    return url


def fetch(machine: str, *more: str) -> Path:
    """Return the directory that holds torch/, filled if that has not happened before."""
    place = ROOT / "build" / f"torch-{VERSION}-{machine}"
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        wanted = [name for name in (*FILES, *more) if not (place / name).exists()]
        if wanted:
            _extract(place, url_of_wheel(machine), wanted)
    return place


def _extract(place: Path, address: str, wanted: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=place) as scratch:
        with fsspec.open(address, block_size=2**22) as file, zipfile.ZipFile(file) as archive:
            archive.extractall(scratch, [n for n in archive.namelist() if n.startswith(tuple(wanted))])
        for name in wanted:
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(scratch) / name).rename(place / name)


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{fetch(*sys.argv[1:])}\n")
    except (OSError, ValueError, aiohttp.ClientError, zipfile.BadZipFile) as error:  # ValueError: no ranges
        sys.stderr.write(f"torch {VERSION} cannot be fetched: {error or type(error).__name__}\n")
        sys.exit(77)

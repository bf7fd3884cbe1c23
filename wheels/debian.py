"""Unpack Debian's packages for any machine: python wheels/debian.py ARCHITECTURE PACKAGE[:all][=FILE]...

Prints the directory, in build/, that holds their files, or of some only FILE. Nothing is installed. ":all" is
for packages that are the same for all machines. Exit status 77: they cannot be fetched; the reason on stderr.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[1]


def unpacked(architecture: str, *packages: str) -> Path:
    """Return the directory with these packages; raise OSError if they cannot be fetched."""
    root = ROOT / "build" / f"debian-{architecture}"
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        _unpack(root, architecture, packages)
    return root


def _unpack(root: Path, architecture: str, packages: Sequence[str]) -> None:
    wanted = [package.split("=") for package in packages]
    missing = [each for each in wanted if not (root / f"{each[0]}.done").exists()]
    if not missing:
        return
    apt = ["apt-get", "-qq", "-o", f"APT::Architectures::={architecture}"]
    for key, folder in {"State::lists": "lists", "Cache": "cache"}.items():
        (root / folder / "partial").mkdir(parents=True, exist_ok=True)
        apt += ["-o", f"Dir::{key}={root / folder}"]
    _run(root, *apt, "update")
    for name, *files in missing:
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            _run(scratch, *apt, "download", name if name.endswith(":all") else f"{name}:{architecture}")
            only = " ".join(f"./{file}" for file in files)
            unpack = f"dpkg --fsys-tarfile {scratch}/*.deb | tar -x -C .. {only}"
            _run(scratch, "bash", "-o", "pipefail", "-c", unpack)
        (root / f"{name}.done").touch()


def _run(place: Path | str, *command: str) -> None:
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{command[0]} ended with status {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{unpacked(*sys.argv[1:])}\n")
    except OSError as error:
        sys.stderr.write(f"packages of Debian cannot be fetched: {error}\n")
        sys.exit(77)

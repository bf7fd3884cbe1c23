"""_build.py and library.py: fingerprints, locks, killed builders, and what a user is told when a build fails.

Most tests compile a stand-in of two small files, in a copy of the package that holds nothing else.
"""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tarpeg.errors import BuildError
from tarpeg.ops import library

PACKAGE = Path(library.__file__).parents[1]
BUILD = "from tarpeg.ops import library; print(library.build())"
LOAD = "from tarpeg.ops import library; library.load(); print(library.library_path())"
WAIT_S = 60


class Site:
    """A copy of the package's loading half over a stand-in for the native sources, and a way to run it."""

    def __init__(self, home: Path) -> None:
        self.home, self.package = home, home / "site" / "tarpeg"
        self.native, self.lib, self.calls = self.package / "native", self.package / "_lib", home / "calls"
        self.native.mkdir(parents=True)
        (self.package / "ops").mkdir()
        for name in (
            "__init__.py",
            "errors.py",
            "ops/__init__.py",
            "ops/library.py",
        ):
            shutil.copy(PACKAGE / name, self.package / name)
        (self.native / "one.h").write_text("int two();\n")
        (self.native / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return two() - 1; }\n')
        (self.native / "two.cpp").write_text(
            "#include <cstdio>\n#include <jpeglib.h>\nint two() { return 2; }\n"
        )

    def start(self, code: str, *prefix: str, **env: str) -> subprocess.Popen[str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("TARPEG_")}
        paths = {"PYTHONPATH": str(self.home / "site"), "XDG_CACHE_HOME": str(self.home / "cache")}
        return subprocess.Popen(
            [*prefix, sys.executable, "-c", code],
            env={**clean, **paths, **env},
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, *prefix: str, **env: str) -> tuple[int, str, str]:
        process = self.start(code, *prefix, **env)
        out, err = process.communicate(timeout=WAIT_S)
        return process.returncode, out.strip(), err

    def compiler(self, script: str) -> str:
        """A compiler that notes each call and then does as the script says."""
        path = self.home / "compiler"
        path.write_text(f'#!/bin/bash\necho "$$" >> {self.calls}\n{script}\n')
        path.chmod(0o755)
        return str(path)

    def libraries(self) -> list[Path]:
        return sorted(self.lib.glob("*.so"))

    def leftovers(self) -> list[Path]:
        return sorted(self.lib.glob(".build-*"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("TARPEG_"):
            monkeypatch.delenv(name)


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def test_fingerprint_follows_sources_flags_and_switches(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [library.library_name(site.native)]

    def changed() -> bool:
        seen.append(library.library_name(site.native))
        return len(set(seen)) == len(seen)

    (site.native / "one.cpp").write_text("int one() { return 1; }\n")
    assert changed()
    (site.native / "one.h").write_text("int three();\n")
    assert changed()
    (site.native / "three.cpp").write_text("")
    assert changed()
    for variable, value in [
        ("TARPEG_DEBUG", "1"),
        ("TARPEG_SANITIZE", "address"),
        ("TARPEG_SANITIZE", "thread"),
    ]:
        monkeypatch.setenv(variable, value)
        assert changed(), variable
    monkeypatch.setattr(library, "COMPILE_FLAGS", (*library.COMPILE_FLAGS, "-g"))
    assert changed()
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    assert changed()

    monkeypatch.setenv("CXXFLAGS", "-isystem /elsewhere")  # a wheel is found outside the shell that made it
    (site.native / "README").write_text("not compiled")
    assert library.library_name(site.native) == seen[-1]


def test_builds_once_says_so_once_and_leaves_nothing_else(site: Site) -> None:
    status, out, err = site.run(BUILD)
    assert (status, out) == (0, str(site.libraries()[0])), err
    assert re.search(r"^compiling the native operators \(once, about \d+ s\) into \S+/_lib$", err, re.M)
    assert sorted(path.name for path in site.lib.iterdir() if path.name != ".lock") == [Path(out).name]
    assert Path(out).name == library.library_name(site.native)

    assert site.run(BUILD, CXX="/bin/false") == (0, out, "")  # not called again
    (site.native / "one.h").write_text("int two();  // changed\n")
    assert site.run(BUILD)[0] == 0
    assert len(site.libraries()) == 2


def test_eight_processes_build_once(site: Site) -> None:
    compiler = site.compiler('sleep 0.5; exec c++ "$@"')
    started = [site.start(BUILD, CXX=compiler) for _ in range(8)]
    ends = [(*process.communicate(timeout=WAIT_S), process.returncode) for process in started]
    assert [code for *_, code in ends] == [0] * 8, ends
    assert len({out for out, *_ in ends}) == 1
    assert sum("compiling" in err for _, err, _ in ends) == 1
    assert len(site.calls.read_text().split()) == 3  # two files and the link
    assert not site.leftovers()


def test_killed_builder_neither_blocks_nor_breaks_the_next(site: Site) -> None:
    stuck = site.start(BUILD, CXX=site.compiler("exec sleep 300"))
    try:
        wait_for(lambda: site.calls.exists() and site.leftovers(), "the first builder compiles")
        waiting = site.start(BUILD)
        time.sleep(1)
        assert waiting.poll() is None, "two builders at once"
        stuck.send_signal(signal.SIGKILL)
        out, err = waiting.communicate(timeout=WAIT_S)
        assert waiting.returncode == 0, err
        assert [Path(out.strip())] == site.libraries()
        assert not site.leftovers()
    finally:
        stuck.kill()
        for pid in site.calls.read_text().split():  # its compilers outlived it
            os.kill(int(pid), signal.SIGKILL)
        stuck.communicate()


@pytest.mark.parametrize("how", ["in the way", "read-only"])
def test_unwritable_package_falls_back_to_the_users_cache(site: Site, how: str) -> None:
    prefix: list[str] = []
    if how == "in the way":
        site.lib.write_text("a file where the directory should be")
    elif os.geteuid() == 0:  # permissions do not bind root: mount
        site.lib.mkdir()
        mounts = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
        prefix = ["unshare", "-m", "sh", "-c", mounts, str(site.package)]
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
            pytest.skip("root, but not allowed to mount")
    else:
        site.package.chmod(0o555)
    try:
        status, out, err = site.run(BUILD, *prefix)
        assert status == 0, err
        assert Path(out).parent == site.home / "cache" / "tarpeg" / "lib"
        assert site.run(LOAD, *prefix, TARPEG_NO_BUILD="1") == (0, out, "")
    finally:
        site.package.chmod(0o755)


def test_no_writable_directory_at_all(site: Site) -> None:
    _, _, err = site.run(BUILD, TARPEG_LIB_DIR="/proc/nowhere")
    assert re.search(r"BuildError: no directory for the native library .*/proc/nowhere.*TARPEG_LIB_DIR", err)


def test_compiler_error_is_shown(site: Site) -> None:
    (site.native / "two.cpp").write_text('int two() { return "no number"; }\n')
    status, _, err = site.run(BUILD)
    assert status != 0
    assert re.search(r"BuildError: the native operators do not compile", err)
    assert "two.cpp:1:" in err and "error: invalid conversion" in err
    assert "The command was: " in err and "-DTORCH_TARGET_VERSION" in err
    assert not site.libraries() and not site.leftovers()


def test_linker_error_is_shown(site: Site) -> None:
    (site.native / "two.cpp").write_text("")
    _, _, err = site.run(BUILD)
    assert "BuildError" in err and "undefined reference to `two()'" in err


def test_missing_compiler(site: Site) -> None:
    for env in ({"CXX": "/nonexistent/g++ -m64"}, {"PATH": "/nonexistent"}):
        status, _, err = site.run(BUILD, **env)
        assert status != 0
        last = err.strip().splitlines()[-1]
        assert (
            last.startswith("tarpeg.errors.BuildError: no C++ compiler: ") and "apt-get install g++" in last
        )


def test_missing_jpeg_headers_are_one_clear_line(site: Site) -> None:
    """The compiler is real, and sees a /usr/include from which jpeglib.h is gone."""
    told = subprocess.run(
        ["c++", "-E", "-v", "-xc++", "/dev/null"], capture_output=True, text=True, check=True
    ).stderr
    searched = re.findall(r"^ (/\S+)$", told[told.index("search starts here") :], re.M)
    (home,) = {path.parent for place in searched for path in [Path(place) / "jpeglib.h"] if path.exists()}
    shadow = site.home / "include"
    shadow.mkdir()
    for path in home.iterdir():
        if path.name != "jpeglib.h":
            (shadow / path.name).symlink_to(path)
    places = [str(shadow) if Path(place) == home else place for place in searched]
    flags = " ".join(f"-isystem {place}" for place in places)
    status, _, err = site.run(BUILD, CXX=site.compiler(f'exec c++ -nostdinc -nostdinc++ "$@" {flags}'))
    assert status != 0
    last = err.strip().splitlines()[-1]
    assert last == f"tarpeg.errors.BuildError: {library.NO_JPEG}", err
    for command in ("apt-get install libjpeg62-turbo-dev", "dnf install", "conda install", "brew install"):
        assert command in last


@pytest.mark.parametrize(
    "words",
    [
        "jpeg.h:3:10: fatal error: jpeglib.h: No such file or directory",
        "jpeg.h:3:10: fatal error: 'jpeglib.h' file not found",
        "/usr/bin/ld: cannot find -ljpeg: No such file or directory",
        "ld: library not found for -ljpeg",
    ],
)
def test_compilers_ways_to_say_that_libjpeg_is_missing(words: str) -> None:
    assert library.JPEG_MISSING.search(words)
    assert not library.JPEG_MISSING.search(words.replace("jpeg", "gif"))


def test_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.11.0", "2.15.0+cu132", "3.0.0a0+git1234"):
        library.check_torch(version)
    monkeypatch.setattr("torch.__version__", "2.10.1+cpu")
    monkeypatch.setattr(library, "_loaded", None)
    with pytest.raises(BuildError, match=r"torch >= 2\.11, this is torch 2\.10\.1\+cpu"):
        library.load()


def test_building_can_be_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARPEG_LIB_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("TARPEG_NO_BUILD", "1")
    monkeypatch.setattr(library, "_loaded", None)
    with pytest.raises(BuildError, match=r"no libtarpeg-\w+\.so in .*/empty.*TARPEG_NO_BUILD.*pip install"):
        library.load()
    assert not (tmp_path / "empty").exists()


def test_load_is_done_once_by_one_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def find_or_build() -> Path:
        calls.append(1)
        time.sleep(0.1)
        return Path("library.so")

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_find_or_build", find_or_build)
    threads = [threading.Thread(target=library.load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), library.library_path()) == (1, Path("library.so"))


def test_library_that_does_not_load_is_built_anew(site: Site) -> None:
    """As in a home directory shared by machines with different system libraries."""
    site.lib.mkdir()
    path = site.lib / library.library_name(site.native)
    path.write_text("built elsewhere")
    _, _, err = site.run(LOAD, TARPEG_NO_BUILD="1")
    assert "not built" in err and f"{path}: file too short" in err
    status, out, err = site.run(LOAD)
    assert (status, out) == (0, str(path)), err


def test_sources_are_found_where_the_symlink_was_lost(site: Site) -> None:
    shutil.move(site.native, site.home / "native")
    site.native.write_text("../../native")  # what some archives make of a symlink
    code = "from tarpeg.ops import library; print(library.native_dir())"
    assert site.run(code) == (0, str(site.home / "native"), "")
    shutil.rmtree(site.home / "native")
    assert "BuildError: the native sources are missing" in site.run(code)[2]


def test_import_neither_compiles_nor_prints_nor_imports_torch(tmp_path: Path) -> None:
    heavy = {"torch", "lightning", "numpy", "filelock"}
    code = f"import sys, tarpeg; tarpeg.Status; print(*{heavy} & {{*sys.modules}})"
    env = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "TARPEG_LIB_DIR": str(tmp_path / "lib"),
        "CXX": "/bin/false",
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")
    assert not (tmp_path / "lib").exists()


@pytest.mark.slow
def test_real_sources_build_within_30_seconds_of_one_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARPEG_BUILD_JOBS", "1")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    library.build(directories=[tmp_path])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # processor time: another test may share the machine
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 30


@pytest.mark.slow
def test_eight_processes_import_the_real_operators(tmp_path: Path) -> None:
    code = "import tarpeg, torch; tarpeg.decode_crop; print(torch.ops.tarpeg.decode_crop.default)"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "TARPEG_LIB_DIR": str(tmp_path)}
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=pipe, stderr=pipe, text=True)
        for _ in range(8)
    ]
    ends = [(*process.communicate(timeout=240), process.returncode) for process in started]
    assert {(out.strip(), code) for out, _, code in ends} == {("tarpeg.decode_crop.default", 0)}, ends
    assert sum("compiling" in err for _, err, _ in ends) == 1
    assert len(list(tmp_path.glob("*.so"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("sanitizers", ["", "address,undefined"])
def test_debug_and_sanitized_builds_of_the_real_operators_load(tmp_path: Path, sanitizers: str) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(PACKAGE.parent),
        "TARPEG_LIB_DIR": str(tmp_path),
        "TARPEG_DEBUG": "1",
    }
    code = LOAD
    if sanitizers:
        runtime = subprocess.run(
            ["c++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
        )
        env |= {"TARPEG_SANITIZE": sanitizers, "ASAN_OPTIONS": "detect_leaks=0"}
        subprocess.run([sys.executable, "-c", BUILD], env=env, check=True)
        env["LD_PRELOAD"] = runtime.stdout.strip()
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("*.so"))) == 1

"""library.py: fingerprints, locks, killed builders, fallback directories and the errors of a failed build.

Most tests compile a stand-in of two small files, in a copy of the package that holds nothing else.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import object_cache
from helpers.compile_time import reference
from helpers.scripts import wait_until
from helpers.stand_in import WAIT_S, Site, finish, start
from tarpeg.errors import BuildError
from tarpeg.ops import compiler, library

from benchmarks.native import compile_alone

BUILD = "from tarpeg.ops import compiler; print(compiler.build())"
LOAD = "from tarpeg.ops import library; library.load(); print(library.library_path())"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith("TARPEG_"):
            monkeypatch.delenv(name)


def test_fingerprint_follows_sources_flags_and_switches(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [compiler.library_name(site.native)]

    def assert_changed(what: str) -> None:
        names.append(compiler.library_name(site.native))
        assert len(set(names)) == len(names), what

    changes = {"one.cpp": "int one() { return 1; }\n", "one.h": "int three();\n", "three.cpp": ""}
    for name, text in changes.items():
        (site.native / name).write_text(text)
        assert_changed(name)
    for switch in ("TARPEG_DEBUG=1", "TARPEG_SANITIZE=address", "TARPEG_SANITIZE=thread"):
        monkeypatch.setenv(*switch.split("="))
        assert_changed(switch)
    monkeypatch.setattr(compiler, "COMPILE_FLAGS", (*compiler.COMPILE_FLAGS, "-g"))
    assert_changed("flags")
    monkeypatch.setattr(platform, "machine", lambda: "abacus")
    assert_changed("machine")

    monkeypatch.setenv("CXXFLAGS", "-isystem /elsewhere")  # a wheel is used outside the shell that built it
    (site.native / "README").write_text("not compiled")
    assert compiler.library_name(site.native) == names[-1]


@pytest.mark.quick
def test_builds_once_with_one_line_of_log_and_no_other_files(site: Site) -> None:
    status, out, err = site.run(BUILD)
    assert (status, out) == (0, str(site.libraries()[0])), err
    assert re.search(r"^compiling the native operators \(once, about \d+ s\) into \S+/_lib$", err, re.M)
    assert sorted(path.name for path in site.lib.iterdir() if path.name != ".lock") == [Path(out).name]
    assert Path(out).name == compiler.library_name(site.native)

    assert site.run(BUILD, CXX="/bin/false") == (0, out, "")  # not called again
    (site.native / "one.h").write_text("int two();  // changed\n")
    assert site.run(BUILD)[0] == 0
    assert len(site.libraries()) == 2


def test_eight_processes_build_once(site: Site) -> None:
    slow = site.compiler('sleep 0.5; exec c++ "$@"')
    started = [site.start(BUILD, CXX=slow) for _ in range(8)]
    ends = [finish(process) for process in started]
    assert len({out for _, out, _ in ends}) == 1
    assert [status for status, *_ in ends] == [0] * 8, ends
    assert sum("compiling" in err for *_, err in ends) == 1
    assert len(site.calls.read_text().split()) == 3  # two files and the link
    assert not site.leftovers()


def test_killed_builder_neither_blocks_nor_breaks_the_next(site: Site) -> None:
    stuck = site.start(BUILD, CXX=site.compiler("exec sleep 300"))
    try:
        compiles = wait_until(lambda: site.calls.exists() and site.leftovers(), WAIT_S)
        assert compiles, "the first builder does not compile"
        waiting = site.start(BUILD)
        time.sleep(1)
        assert waiting.poll() is None, "two builders at once"
        stuck.send_signal(signal.SIGKILL)
        status, out, err = finish(waiting)
        assert (status, [Path(out)]) == (0, site.libraries()), err
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
        site.lib.write_text("a file instead of the directory")
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
        # TARPEG_CUDA=0: with a GPU, its library would be missing.
        assert site.run(LOAD, *prefix, TARPEG_NO_BUILD="1", TARPEG_CUDA="0") == (0, out, "")
    finally:
        site.package.chmod(0o755)


def test_errors_of_directories_compiler_and_linker(site: Site) -> None:
    err = site.error(BUILD, TARPEG_LIB_DIR="/proc/nowhere")
    assert re.search(r"BuildError: no directory for the native library .*/proc/nowhere.*TARPEG_LIB_DIR", err)
    (site.native / "two.cpp").write_text('int two() { return "no number"; }\n')
    err = site.error(BUILD)
    assert "BuildError: the native operators do not compile" in err
    assert "two.cpp:1:" in err and "error: invalid conversion" in err
    assert "The command was: " in err and "-DTORCH_TARGET_VERSION" in err
    assert not site.libraries() and not site.leftovers()
    (site.native / "two.cpp").write_text("")
    assert "undefined reference to `two()'" in site.error(BUILD)
    for missing in ({"CXX": "/nonexistent/g++ -m64"}, {"CXX": "", "PATH": "/nonexistent"}):
        last = site.error(BUILD, **missing).strip().splitlines()[-1]
        assert last.startswith("tarpeg.errors.BuildError: no C++ compiler: ")
        assert "apt-get install g++" in last


def test_missing_jpeg_headers_are_one_clear_line(site: Site) -> None:
    """With a real compiler and a copy of /usr/include without jpeglib.h."""
    command = ["c++", "-E", "-v", "-xc++", "/dev/null"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    searched = re.findall(r"^ (/\S+)$", listed[listed.index("search starts here") :], re.M)
    (home,) = {path.parent for place in searched for path in [Path(place) / "jpeglib.h"] if path.exists()}
    shadow = site.home / "include"
    shadow.mkdir()
    for path in home.iterdir():
        if path.name != "jpeglib.h":
            (shadow / path.name).symlink_to(path)
    flags = " ".join(f"-isystem {shadow if Path(place) == home else place}" for place in searched)
    err = site.error(BUILD, CXX=site.compiler(f'exec c++ -nostdinc -nostdinc++ "$@" {flags}'))
    last = err.strip().splitlines()[-1]
    assert last == f"tarpeg.errors.BuildError: {compiler.NO_JPEG}", err
    for command in ("apt-get install libjpeg62-turbo-dev", "dnf install", "conda install", "brew install"):
        assert command in last


def test_headers_of_another_libjpeg_are_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jpeglib.h").write_text("#define JPEG_LIB_VERSION 90\n")
    (tmp_path / "jerror.h").touch()
    monkeypatch.setenv("CPPFLAGS", f"-I {tmp_path} -I {compiler.native_dir()}")
    with pytest.raises(BuildError) as caught:
        compile_alone(compiler.native_dir() / "jpeg" / "libjpeg_errors.cpp", tmp_path / "x.so")
    assert str(caught.value) == f"jpeglib.h is not libjpeg-turbo's: {compiler.NO_JPEG}"


@pytest.mark.parametrize("version", [70, 80])
def test_the_sources_compile_with_the_headers_of_other_apis(tmp_path: Path, version: int) -> None:
    """Ubuntu's libjpeg-turbo8-dev has API 8; its headers differ from those of API 6 by this number."""
    jpeg = compiler.native_dir() / "jpeg"
    command = [*compiler.find_compiler(), "-std=c++17", "-I", str(tmp_path), "-I", str(compiler.native_dir())]
    source = str(jpeg / "libjpeg_errors.cpp")
    listed = subprocess.run([*command, "-M", source], capture_output=True, text=True, check=True).stdout
    for header in re.findall(r"\S+/(?:jpeglib|jerror|jconfig|jmorecfg)\.h\b", listed):
        text = Path(header).read_text()
        changed = re.sub(r"(#define JPEG_LIB_VERSION\s+)62\b", rf"\g<1>{version}", text)
        (tmp_path / Path(header).name).write_text(changed)
    assert f"JPEG_LIB_VERSION  {version}" in (tmp_path / "jconfig.h").read_text()
    files = [str(jpeg / name) for name in ("libjpeg_errors.cpp", "libjpeg.cpp", "transcode.cpp")]
    done = subprocess.run([*command, "-fsyntax-only", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


OTHER_LIBJPEG = """
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <jpeglib.h>
#include <jerror.h>
#pragma GCC visibility push(default)

extern "C" void jpeg_CreateDecompress(j_decompress_ptr info, int version, size_t size) {
  auto real = reinterpret_cast<decltype(&jpeg_CreateDecompress)>(dlsym(RTLD_NEXT, "jpeg_CreateDecompress"));
  static int calls = 0;
  if (getenv("OTHER_VERSION") == nullptr) return real(info, version, size);
  if (++calls % 2 != 0) return real(info, 90, size);
  info->err->msg_code = JERR_BAD_LIB_VERSION - 1;  // libraries of API 7 and 8 number their messages otherwise
  info->err->error_exit(reinterpret_cast<j_common_ptr>(info));
}

// As mozjpeg does.
extern "C" void jpeg_copy_critical_parameters(j_decompress_ptr from, j_compress_ptr to) {
  auto real = reinterpret_cast<decltype(&jpeg_copy_critical_parameters)>(
      dlsym(RTLD_NEXT, "jpeg_copy_critical_parameters"));
  real(from, to);
  jpeg_simple_progression(to);
}
"""
TILE = """
import tarpeg
from helpers import pictures
for kind in ("420", "progressive"):
    file = pictures.tensor(pictures.jpeg(kind, 40, 60))
    for call in (lambda: tarpeg.tile_jpeg(file), lambda: tarpeg.decode_crop(file, 0, 0, 1, 1)):
        try:
            print(bytes(call().numpy()).count(b"\\xff\\xda"))
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
"""


def test_another_libjpeg_at_run_time(tmp_path: Path) -> None:
    (tmp_path / "other.cpp").write_text(OTHER_LIBJPEG)
    compile_alone(tmp_path / "other.cpp", tmp_path / "other.so")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["LD_PRELOAD"] = str(tmp_path / "other.so")

    def lines(**more: str) -> list[str]:
        command = [sys.executable, "-c", TILE]
        done = subprocess.run(command, env=environment | more, capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert lines() == ["1", "0"] * 2, "progressive by default, but one scan"
    errors = lines(OTHER_VERSION="1")
    assert len(errors) == 4
    for error in errors:
        words = r"BuildError .*\.so cannot be used: /.*libjpeg.*is not the one that tarpeg was compiled with"
        assert re.match(words, error)


def test_compiler_messages_about_a_missing_libjpeg() -> None:
    for words in (
        "jpeg.h:3:10: fatal error: jpeglib.h: No such file or directory",
        "jpeg.h:3:10: fatal error: 'jpeglib.h' file not found",
        "/usr/bin/ld: cannot find -ljpeg: No such file or directory",
        "ld: library not found for -ljpeg",
    ):
        assert compiler.JPEG_MISSING.search(words)
        assert not compiler.JPEG_MISSING.search(words.replace("jpeg", "gif"))


def test_old_torch_and_a_missing_library_are_refused(tmp_path: Path, monkeypatch) -> None:
    for version in ("2.11.0", "2.15.0+cu132", "3.0.0a0+git1234"):
        compiler.check_torch(version)
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setenv("TARPEG_LIB_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("TARPEG_NO_BUILD", "1")
    with pytest.raises(BuildError, match=r"no libtarpeg-\w+\.so in .*/empty.*TARPEG_NO_BUILD.*pip install"):
        library.load()
    assert not (tmp_path / "empty").exists()
    monkeypatch.setattr("torch.__version__", "2.10.1+cpu")
    with pytest.raises(BuildError, match=r"torch >= 2\.11, this is torch 2\.10\.1\+cpu"):
        library.load()


def test_load_is_done_once_by_one_of_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def find_or_build() -> Path:
        calls.append(1)
        time.sleep(0.1)
        return Path("library.so")

    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_find_or_build", find_or_build)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: library.load(), range(8)))
    assert (len(calls), library.library_path()) == (1, Path("library.so"))


def test_library_that_does_not_load_is_rebuilt(site: Site) -> None:
    """As in a home directory shared by machines with different system libraries."""
    site.lib.mkdir()
    path = site.lib / compiler.library_name(site.native)
    path.write_text("built elsewhere")
    err = site.error(LOAD, TARPEG_NO_BUILD="1")
    assert "not built" in err and f"{path}: file too short" in err
    status, out, err = site.run(LOAD)
    assert (status, out) == (0, str(path)), err


def test_sources_are_found_without_the_symlink(site: Site) -> None:
    shutil.move(site.native, site.home / "native")
    site.native.write_text("../../native")  # what some archives make of a symlink
    code = "from tarpeg.ops import compiler; print(compiler.native_dir())"
    assert site.run(code) == (0, str(site.home / "native"), "")
    shutil.rmtree(site.home / "native")
    assert "BuildError: the native sources are missing" in site.error(code)


def test_import_neither_compiles_nor_prints_nor_imports_torch(tmp_path: Path) -> None:
    heavy = {"torch", "lightning", "numpy", "filelock"}
    code = f"import sys, tarpeg; tarpeg.Status; print(*{heavy} & {{*sys.modules}})"
    assert finish(start(code, TARPEG_LIB_DIR=tmp_path / "lib", CXX="/bin/false")) == (0, "", "")
    assert not (tmp_path / "lib").exists()


@pytest.mark.slow
def test_real_sources_are_less_to_compile_than_70_files_with_regular_expressions(tmp_path: Path) -> None:
    """Text to read and code to write, about 50 s of one job: the time itself depends on the machine."""
    flags = [*compiler.COMPILE_FLAGS, "-I", str(compiler.native_dir())]
    flags += ["-isystem", str(compiler.torch_dir() / "include")]
    regex = reference(tmp_path)

    def text(source: Path) -> int:
        command = [*compiler.find_compiler(), *flags, "-E", "-P", str(source)]
        return len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def code(path: Path) -> int:
        done = subprocess.run(["size", str(path)], capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[1].split()[0])

    sources = compiler.sources(compiler.native_dir(), "cpp")
    assert len(sources) > 40
    assert sum(map(text, sources)) < 70 * text(regex)
    compiled = regex.with_suffix(".o")
    subprocess.run([*compiler.find_compiler(), *flags, "-c", str(regex), "-o", str(compiled)], check=True)
    assert code(library.library_path()) < 10 * code(compiled)


@pytest.mark.skipif(platform.system() != "Linux", reason="a version script")
def test_the_library_exports_nothing_of_the_standard_library() -> None:
    command = ["nm", "-D", "--defined-only", str(library.library_path())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert listed[2::3] and all(name.startswith("tarpeg_") for name in listed[2::3])


@pytest.mark.slow
def test_a_library_with_a_static_libstdcxx_raises_errors_of_operators(tmp_path: Path, monkeypatch) -> None:
    """A debug build: test_wheels.py. The sanitised one: test_fuzzing.py."""
    monkeypatch.setenv(object_cache.FOLDER, str(object_cache.folder()))
    static = "-static-libstdc++ -static-libgcc"
    code = f"{LOAD}; import torch; torch.ops.tarpeg.tile_jpeg(torch.zeros(1), 1, 1)"
    settings = {"LDFLAGS": static, "CXX": object_cache.compiler()}
    done = finish(start(code, TARPEG_LIB_DIR=tmp_path, **settings), 600)
    assert re.search(r"RuntimeError: .*checks\.h:\d+, jpeg.* must be a one-dimensional uint8 tensor", done[2])
    assert done[:2] == (1, str(*tmp_path.glob("*.so")))


def test_a_library_that_others_can_write_is_not_loaded(tmp_path, monkeypatch, caplog) -> None:
    name, place = compiler.library_name(compiler.native_dir()), tmp_path / "lib"
    place.mkdir(mode=0o700)
    path = place / name
    path.write_bytes(b"a library")
    path.chmod(0o700)
    monkeypatch.setenv("TARPEG_LIB_DIR", str(place))
    monkeypatch.setenv("TARPEG_NO_BUILD", "1")
    loaded = []
    monkeypatch.setattr(library, "_load_library", lambda path: loaded.append(path))
    for part, modes in ((path, (0o720, 0o702, 0o777)), (place, (0o770, 0o703, 0o1777))):
        for mode in modes:
            part.chmod(mode)
            with pytest.raises(
                BuildError, match=rf"other users can write {part} \(mode {mode:o}\): chmod go-w"
            ):
                library._find_or_build()
            assert not loaded and f"{path} is not loaded" in caplog.text
            part.chmod(0o700)
    assert library._find_or_build() == path and loaded == [path]
    with monkeypatch.context() as other:  # neither its owner, nor that of the package, nor root
        stranger = os.stat_result((0o100755, 0, 0, 1, 4321, 0, 0, 0, 0, 0))
        other.setattr(Path, "stat", lambda self: stranger if self == path else os.stat(self))  # noqa: PTH116
        assert compiler.why_unsafe(path).startswith(f"{path} belongs to another user (4321)")


def test_users_that_share_a_folder_get_one_each(tmp_path, monkeypatch) -> None:
    def compile_into(scratch: Path, built: Path) -> None:
        built.write_bytes(b"a library")
        built.chmod(0o777)

    old = os.umask(0o002)
    try:
        monkeypatch.setenv("TARPEG_LIB_DIR", str(tmp_path / "new"))
        alone = compiler.build_once("x.so", compile_into)
        assert alone == tmp_path / "new" / "x.so"
        assert alone.parent.stat().st_mode & 0o777 == 0o700 and alone.stat().st_mode & 0o022 == 0
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(0o1777)
        monkeypatch.setenv("TARPEG_LIB_DIR", str(shared))
        mine = compiler.build_once("x.so", compile_into)
        assert (
            mine == shared / f"tarpeg-{os.getuid()}" / "x.so" and mine.parent.stat().st_mode & 0o777 == 0o700
        )
        assert compiler.why_unsafe(mine, mine.parent) == "" and mine.parent in compiler.library_dirs()
        other = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: other)
        assert compiler.build_once("x.so", compile_into) == shared / f"tarpeg-{other}" / "x.so"
    finally:
        os.umask(old)

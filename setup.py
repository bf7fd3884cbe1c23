"""Compile ahead of time if torch is installed; otherwise pack the sources, which are compiled at first use.

The operators include no Python.h, so a wheel that holds them is tagged py3-none-PLATFORM; one that holds only
the sources is py3-none-any. TARPEG_NO_BUILD=1 selects the latter.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import setuptools

if int(setuptools.__version__.partition(".")[0]) < 77:  # with --no-build-isolation, pip does not look
    raise SystemExit(
        f"tarpeg: setuptools {setuptools.__version__} is older than 77: run pip install 'setuptools>=77' "
        "first, or leave --no-build-isolation out"
    )

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "datamodules"))
from tarpeg.errors import BuildError
from tarpeg.ops import compiler  # imports the standard library alone

AHEAD_OF_TIME = compiler.torch_dir() is not None and not compiler.building_forbidden()


class BuildPackage(build_py):
    """Copies the Python files and compiles the native ones."""

    def run(self) -> None:
        """Put the library next to the copies, or into the checkout for an editable install."""
        super().run()
        packed = Path(self.build_lib) / "tarpeg" / "_lib"
        shutil.rmtree(packed, ignore_errors=True)  # build/ may hold the libraries of earlier sources
        if not AHEAD_OF_TIME:
            self.warn(
                "tarpeg: torch is missing (or TARPEG_NO_BUILD is set): the operators are built at first use"
            )
            return
        try:
            if self.editable_mode:
                compiler.build(force=True)
                if compiler.cuda_switch():
                    compiler.build_cuda(force=True)
                return
            with tempfile.TemporaryDirectory() as scratch:
                libraries = [compiler.build(directories=[Path(scratch)])]
                if self.has_cuda():
                    libraries.append(compiler.build_cuda(directories=[Path(scratch)]))
                packed.mkdir(parents=True)
                for path in libraries:
                    shutil.copy(path, packed)
        except BuildError as error:
            raise SystemExit(f"tarpeg: {error}") from None

    def has_cuda(self) -> bool:
        """Return whether the wheel gets the CUDA operators: if nvcc works, unless TARPEG_CUDA decides."""
        wanted = compiler.cuda_switch()
        if wanted is None:
            try:
                compiler.find_nvcc()
            except BuildError as error:
                self.warn(f"tarpeg: the wheel holds no CUDA operators: {error}")
                return False
        return wanted is not False


class BuildWheel(bdist_wheel):
    """Tags the wheel for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of any Python, no ABI, and this platform."""
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Declares machine code if the wheel holds a library."""

    def has_ext_modules(self) -> bool:
        """Return whether this is a platform wheel."""
        return AHEAD_OF_TIME


setup(cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel}, distclass=NativeDistribution)

"""Compile ahead of time where torch is at hand; otherwise pack the sources, which are built at first use.

The operators include no Python.h, so a wheel that holds them is tagged py3-none-PLATFORM; one that holds the
sources alone is py3-none-any. TARPEG_NO_BUILD=1 asks for the latter.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent / "datamodules"))
from tarpeg.ops import build, cuda  # they import the standard library alone
from tarpeg.errors import BuildError

AHEAD_OF_TIME = build.torch_dir() is not None and not build.building_forbidden()


class BuildPackage(build_py):
    """Copies the Python files and compiles the native ones."""

    def run(self) -> None:
        """Put the library beside the copies, or into the checkout for an editable install."""
        super().run()
        packed = Path(self.build_lib) / "tarpeg" / "_lib"
        shutil.rmtree(packed, ignore_errors=True)  # build/ may hold the libraries of earlier sources
        if not AHEAD_OF_TIME:
            self.warn(
                "tarpeg: torch is not here (or TARPEG_NO_BUILD is set): the operators are built at first use"
            )
            return
        try:
            if self.editable_mode:
                build.build(force=True)
                if cuda.switch():
                    cuda.build(force=True)
                return
            with tempfile.TemporaryDirectory() as scratch:
                libraries = [build.build(directories=[Path(scratch)])]
                if self.has_cuda():
                    libraries.append(cuda.build(directories=[Path(scratch)]))
                packed.mkdir(parents=True)
                for library in libraries:
                    shutil.copy(library, packed)
        except BuildError as error:
            raise SystemExit(f"tarpeg: {error}") from None

    def has_cuda(self) -> bool:
        """Say whether the wheel gets the CUDA operators: where an nvcc works, or as TARPEG_CUDA asks."""
        wanted = cuda.switch()
        if wanted is None:
            try:
                cuda.find_nvcc()
            except BuildError as error:
                self.warn(f"tarpeg: the wheel holds no CUDA operators: {error}")
                return False
        return wanted is not False


class BuildWheel(bdist_wheel):
    """Tags the wheel for every Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Keep the platform alone."""
        return "py3", "none", super().get_tag()[2]


class NativeDistribution(Distribution):
    """Says that there is machine code where there is."""

    def has_ext_modules(self) -> bool:
        """Make a platform wheel out of one that holds a library."""
        return AHEAD_OF_TIME


setup(cmdclass={"build_py": BuildPackage, "bdist_wheel": BuildWheel}, distclass=NativeDistribution)

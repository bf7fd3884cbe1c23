"""Compiling one C++ file of a contestant with the compiler and the flags of tarpeg's library."""

from __future__ import annotations

from pathlib import Path

from tarpeg.ops.compiler import COMPILE_FLAGS, conda_flags, find_compiler, run_compiler, words_of


def compile_alone(source: Path, library: Path) -> None:
    """Compile one file that needs libjpeg but not torch; BuildError if that fails."""
    include, lib = conda_flags()
    flags = [*COMPILE_FLAGS, "-shared", *words_of("CPPFLAGS"), *include, str(source), "-o", str(library)]
    run_compiler([*find_compiler(), *flags, *words_of("LDFLAGS"), *lib, "-ljpeg"])

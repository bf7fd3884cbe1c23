"""``tarpeg COMMAND key=value ...``: one command for all tools."""

from __future__ import annotations

import argparse
import importlib
import re
import sys

from rich.console import Console

from .hints import check_arguments, check_settings

COMMANDS = {
    "build-cache": "convert shards, or a folder of images, into a cache that decodes quickly",
    "make-shards": "write shards of images with annotations, of a folder, or of synthetic photographs",
    "preview": "draw the network's inputs, before and after augmentation",
    "plan": "print what an epoch will be: samples, batches of each shape, crops and padding",
    "doctor": "report what is installed, what is loaded and how fast it is",
    "bench": "measure ways to decode and load training images",
}

_AFTER = {"build_cache": "; finished shards are kept: the same command goes on from there"}

# The name of the folder that a tool writes: each takes the other's name, too.
_SAME = {"make_shards": ("^dest=", "out="), "build_cache": ("^out=", "dest=")}


def run(tool: str) -> None:
    """Run a tool of this package with the arguments in ``sys.argv``."""
    if tool in _SAME:
        sys.argv[1:] = [re.sub(*_SAME[tool], argument) for argument in sys.argv[1:]]
    check_arguments(tool, sys.argv[1:])
    check_settings(tool, sys.argv[1:])
    try:
        importlib.import_module(f".{tool}", __package__).main()
    except KeyboardInterrupt:
        Console(stderr=True, soft_wrap=True).print(f"{tool}: interrupted{_AFTER.get(tool, '')}", style="none")
        sys.exit(130)


def main() -> None:
    """Run the command of the command line; Hydra reads what follows it."""
    commands = "\n".join(f"  {name:<12} {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "tarpeg",
        description=f"Tools of tarpeg:\n\n{commands}",
        epilog="tarpeg COMMAND --help lists the settings of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("settings", nargs=argparse.REMAINDER, metavar="key=value")
    given = parser.parse_args(sys.argv[1:] or ["--help"])
    sys.argv = [f"tarpeg {given.command}", *given.settings]
    run(given.command.replace("-", "_"))

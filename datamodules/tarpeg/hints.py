"""Hints for the command lines, before Hydra sees them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def check_braces(program: str, arguments: Sequence[str]) -> None:
    """Say how braces are quoted: a shell makes many arguments of them, of which Hydra would take the last.

    Raises SystemExit, with one line.
    """
    pairs = [argument.partition("=") for argument in arguments if not argument.startswith(("-", "hydra"))]
    shards = [key for key, _, value in pairs if value.endswith(".tar")]
    for key, _, value in pairs:
        if shards.count(key) > 1 or re.match(r"[^\"'\[({$]+\{", value):
            raise SystemExit(
                f"{program}: {key} has braces without quotes, or is given {shards.count(key)} times. Braces "
                f"need the shell's quotes and Hydra's: '{key}=\"/data/train-{{000..009}}.tar\"'"
            )

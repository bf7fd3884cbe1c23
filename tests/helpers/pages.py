"""The pages of the documentation, their code blocks and commands."""

from __future__ import annotations

import re
from typing import NamedTuple

from helpers.checkouts import ROOT

DOCS = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
PAGES = ("README.md", "CONTRIBUTING.md", *DOCS)
TUTORIAL = "docs/tutorial.md"  # tests/repo/test_tutorial.py runs it, in order
# The beginning of a command line, in a text or in a block.
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:python3?|pip|make|export|source|git|cd|\.ci/run|tensorboard)(?=\s|$)"
)


class Block(NamedTuple):
    """A fenced block: language, text, and line number."""

    language: str
    text: str
    line: int


def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    fenced = list(re.finditer(r"^ *```(\S*)\n(.*?)^ *```$", text, re.M | re.S))
    assert len(re.findall(r"^ *```", text, re.M)) == 2 * len(fenced), f"{page}: a block does not end"
    return [Block(match[1], match[2], text.count("\n", 0, match.start()) + 1) for match in fenced]


def commands(page: str) -> list[str]:
    """All commands of a page: the lines of shell blocks, then commands between backquotes."""
    found = []
    for block in blocks(page):
        if block.language == "sh":
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [re.sub(r"\s+#\s.*$", "", line).strip() for line in lines]
    text = re.sub(r"^\s*```.*?^\s*```", "", (ROOT / page).read_text(), flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    found += [span for span in spans if PROGRAM.match(span) and (" " in span or span.startswith("."))]
    return list(dict.fromkeys(command for command in found if command and not command.startswith("#")))

"""Hook of mkdocs: the pages that are not in docs/, and links that work on the site and on a code host.

README, CONTRIBUTING and CHANGELOG become pages of the site. The reference is generated from
``tarpeg.__all__``. A link to another file of the repository leads to a page with its text.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))
import tarpeg

ROOT = Path(__file__).resolve().parents[1]
# Files at the top, and their names on the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Page of the reference: its title, and the modules whose public names it has.
SUBJECTS = {
    "splits": ("Splits and crops", "loader.split sampling"),
    "targets": ("Targets", "targets"),
    "loaders": ("Loaders", "datamodule loader"),
    "augmentation": ("Augmentation", "augment"),
    "data": ("Sources, shards and caches", "shards cache datasets"),
    "operators": ("Operators", "ops"),
    "diagnostics": ("Diagnostics", "diagnostics benchmarks"),
    "errors": ("Errors", "errors"),
}
INTRODUCTION = """
Every public name, by subject. `import tarpeg` gives all of them, and each is imported when it is first used.

The examples are run by a test. They use a few names without making them: `shards`, a folder with two
shards of labelled photographs; `folder`, a folder with one sub-folder of JPEGs per class; `jpeg`, a uint8
tensor with the bytes of a JPEG of 400 x 600 pixels; `tmp`, an empty folder; and the modules `tarpeg`,
`torch` and `numpy`.
"""
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".cpp": "cpp", ".h": "cpp"}


class Examples(griffe.Extension):
    """Reads the section ``Example:`` as griffe reads ``Examples:``, with lines of ``>>>``."""

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        """Rename the section of a docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.M)


def subject_of(name: str) -> str:
    """Page of the reference that has a public name."""
    home = tarpeg._HOME[name]
    places = {module: page for page, (_, modules) in SUBJECTS.items() for module in modules.split()}
    for module in (home, home.partition(".")[0]):
        if module in places:
            return places[module]
    raise PluginError(f"docs/site.py: tarpeg.{name} is in {home}, which is on no page of the reference")


def reference() -> dict[str, str]:
    """Text of the pages of the reference, by name of the page."""
    package = griffe.load("tarpeg", search_paths=[str(ROOT / "datamodules")], allow_inspection=False)
    names = {page: [name for name in tarpeg.__all__ if subject_of(name) == page] for page in SUBJECTS}
    pages, index = {}, ["# Reference", INTRODUCTION]
    for page, (title, _) in SUBJECTS.items():
        entries = "\n\n".join(f"::: tarpeg.{name}" for name in names[page])
        pages[f"reference/{page}.md"] = f"# {title}\n\n{entries}\n"
        index += [f"## {title}\n", "| name | |", "|---|---|"]
        for name in names[page]:
            docstring = package[name].docstring
            first = docstring.value.partition("\n")[0] if docstring else ""
            index.append(f"| [{name}]({page}.md#tarpeg.{name}) | {first} |")
        index.append("")
    return {"reference/index.md": "\n".join(index), **pages}


def place_on_site(path: str) -> str:
    """Place on the site of a file of the repository."""
    if path in TOP:
        return TOP[path]
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"files/{path}/index.md"
    return f"files/{path.removesuffix('.md')}.md"


def with_links(text: str, origin: str) -> tuple[str, set[str]]:
    """Return a page with the links of the site, and the files of the repository that it links to.

    Args:
        text: Markdown, with links relative to its file.
        origin: Path of that file in the repository.
    """
    here = posixpath.dirname(place_on_site(origin))
    folder = origin if (ROOT / origin).is_dir() else posixpath.dirname(origin)
    linked = set()

    def replaced(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, match[1]))
        if target.startswith("..") or not (ROOT / target).exists():
            return match[0]  # a link to elsewhere, or code
        linked.add(target)
        return f"]({posixpath.relpath(place_on_site(target), here or '.')}{match[2] or ''})"

    return LINK.sub(replaced, text), linked


def text_of(path: str) -> str:
    """Text of the page of a file: the page itself, the file as a block of code, or the list of a folder."""
    place = ROOT / path
    if place.is_dir():
        found = [file.relative_to(place) for file in sorted(place.rglob("*")) if file.is_file()]
        return f"# {path}\n\n" + "".join(f"- [{file}]({file})\n" for file in found if file.suffix != ".pyc")
    if place.suffix == ".md":
        return place.read_text()
    return f"# {path}\n\n````{LANGUAGES.get(place.suffix, 'text')}\n{place.read_text()}````\n"


def on_config(config: MkDocsConfig) -> None:
    """Put the reference behind the guide."""
    pages = [f"reference/{name}.md" for name in ("index", *SUBJECTS)]
    assert config.nav is not None, "mkdocs.yml has it"
    config.nav.insert(2, {"Reference": pages})


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/, and those that they link to."""
    pages = reference()
    waiting = [*TOP, *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
    for origin in waiting:  # the list grows while it is read
        text, linked = with_links(text_of(origin), origin)
        pages[place_on_site(origin)] = text
        waiting += sorted(path for path in linked - {*waiting} if place_on_site(path).startswith("files/"))
    for place, text in pages.items():
        old = files.get_file_from_path(place)
        if old is not None:
            files.remove(old)
        files.append(File.generated(config, place, content=text))

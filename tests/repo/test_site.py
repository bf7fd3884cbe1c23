"""Builds the site of the pages and the reference, and follows all of its links."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest
import tarpeg
from helpers.checkouts import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return place


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    text = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    assert [name for name in tarpeg.__all__ if f'id="tarpeg.{name}"' not in text] == []
    assert text.count("&gt;&gt;&gt;") > 0 and "Example:" not in text  # sections, not paragraphs


@pytest.mark.slow
def test_links_of_the_site_lead_somewhere(site):
    pages = {path: path.read_text() for path in site.rglob("*.html") if path.name != "404.html"}
    anchors = {path: {*re.findall(r'\bid="([^"]+)"', text)} for path, text in pages.items()}
    followed = 0
    for path, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]+)"', text):
            if re.match(r"[a-z]+:|//", link):
                assert link.startswith(("https://", "mailto:", "data:")), f"{path}: {link}"
                continue
            target, _, anchor = unquote(link).partition("#")
            found = (path.parent / target).resolve() if target else path
            found = found / "index.html" if found.is_dir() else found
            assert found.is_file(), f"{path.relative_to(site)}: {link}"
            if anchor and found in anchors:
                assert anchor in anchors[found] | {"__"}, f"{path.relative_to(site)}: {link}"
            followed += 1
    assert followed > 1000

"""Tests of one ``xdist_group`` in one process, with any pytest.

pytest-xdist 3.8 sends the group in ``_nodeid``, which pytest 9.2 does not read any more: without a word, the
tests of a group, and with them the builds and folders that they share, are spread over all processes. See
https://github.com/pytest-dev/pytest-xdist/issues/1386.
"""

from __future__ import annotations

import pytest


def send_groups(items: list[pytest.Item]) -> None:
    """End the id of each test with its group, which pytest-xdist reads there."""
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        if mark and hasattr(item, "_id") and not item.nodeid.endswith(f"@{mark.args[0]}"):
            item._id = type(item._id).parse(f"{item.nodeid}@{mark.args[0]}")

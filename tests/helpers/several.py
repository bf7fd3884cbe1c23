"""Shards whose samples have several images each."""

from __future__ import annotations

from helpers.pictures import jpeg
from helpers.small_tars import write_tar

COUNT = 11
SIDES = ("left", "right")
# Not the order in which they are to come, and not that of texts.
NUMBERS = (10, 2, 0, 1)


def pair(number):
    """The images of a sample, left and right, of one size."""
    height, width = 64 + 8 * (number % 3), 80 + number
    return {side: jpeg("420", height, width, seed=2 * number + place) for place, side in enumerate(SIDES)}


def stack(number):
    """The images of a sample, by number: 1 to 4, of sizes of their own."""
    return {
        each: jpeg("420", 50 + each, 60 + 3 * number, seed=100 + 10 * number + each)
        for each in NUMBERS[: 1 + number % 4]
    }


def pairs(path, changed=None):
    """A shard of pairs with labels; changed: members of some samples, by key, in place of the usual ones."""
    return _shard(path, pair, changed or {})


def stacks(path, changed=None):
    """A shard of samples with 1 to 4 images; changed: as of ``pairs``."""
    return _shard(path, stack, changed or {})


def _shard(path, images_of, changed):
    members = []
    for number in range(COUNT):
        key = f"k{number:02d}"
        own = {f"{name}.jpg": data for name, data in images_of(number).items()} | {"cls": b"%d" % number}
        members += [(f"{key}.{name}", data) for name, data in changed.get(key, own).items()]
    return write_tar(path, members)

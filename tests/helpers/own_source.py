"""Sources as a user writes them."""

from __future__ import annotations

import tarpeg

from helpers.pictures import jpeg


class OwnSource(tarpeg.Source):
    """The samples of shards, each image in memory of its own."""

    def __init__(self, shards):
        self.shards = shards

    def __len__(self):
        return len(self.shards)

    def keys(self, ids):
        return self.shards.keys(ids)

    def members(self, ids, extension):
        return self.shards.members(ids, extension)

    def extensions(self, id):
        return self.shards.extensions(id)


class Pictures(tarpeg.Source):
    """JPEGs whose label is their number, beyond ``first``."""

    def __init__(self, count, first):
        self.files = [jpeg("420", 40, 48, first + seed) for seed in range(count)]
        self.first = first

    def __len__(self):
        return len(self.files)

    def keys(self, ids):
        return [str(id) for id in ids]

    def members(self, ids, extension):
        return [self.files[id] if extension == "jpg" else str(self.first + id).encode() for id in ids]

    def extensions(self, id):
        return ["jpg", "cls"]

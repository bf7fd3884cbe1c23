"""A source as a user writes it."""

from __future__ import annotations

import tarpeg


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

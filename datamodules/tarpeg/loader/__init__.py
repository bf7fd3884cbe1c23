"""From sample ids to batches: splits, settings, fetching, workers, batch memory and the loaders.

Code that imports Lightning belongs in ``datamodule``, formats of shards in ``shards``.
"""

"""From sample ids to batches: what a split asks for, fetching, workers, batch memory, the loaders.

It does not belong here: Lightning (``datamodule``), the format of shards (``shards``).
"""

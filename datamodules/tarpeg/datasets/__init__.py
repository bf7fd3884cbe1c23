"""Data sets: synthetic photographs, the shard writer, and callables that prepare shards or a cache.

Not here: encoding for a cache (``cache``).
"""

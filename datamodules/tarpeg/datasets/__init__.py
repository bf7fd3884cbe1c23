"""Making data: synthetic photographs, the shard writer, and callables that prepare a data set.

It does not belong here: encoding for a cache (``cache``).
"""

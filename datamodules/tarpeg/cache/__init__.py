"""The offline cache builder: read a source, encode its images, write shards, verify them.

Not here: reading a finished cache for training (``shards``).
"""

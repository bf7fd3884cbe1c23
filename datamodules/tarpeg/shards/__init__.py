"""Samples of shards, by number or as a stream: paths, tars, their indexes, manifests, labels, image formats.

Not here: decoding of JPEGs (``ops``), batches (``loader``), writing of shards (``datasets``, ``cache``).
"""

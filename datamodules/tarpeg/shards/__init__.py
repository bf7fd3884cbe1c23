"""Reading samples, by number or as a stream: paths, tars, their indexes, labels, other image formats.

It does not belong here: decoding JPEGs (``ops``), batches (``loader``), writing shards (``datasets``, ``cache``).
"""

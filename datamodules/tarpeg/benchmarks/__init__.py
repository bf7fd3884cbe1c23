"""Other libraries and this one, measured on the same photographs: ``tarpeg.measure`` and tools/bench.py.

No other room imports this one. Not here: diagnosis of one installation (``diagnostics``).
"""

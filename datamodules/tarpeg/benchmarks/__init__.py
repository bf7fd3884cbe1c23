"""Other libraries and this one, measured on the same photographs: ``tarpeg.measure`` and tools/bench.py.

No other room imports this one. It does not belong here: diagnosis of one installation (``diagnostics``).
"""

"""Other libraries and tarpeg, measured on the same photographs: ``python tools/bench.py``.

Part of the checkout and not of the installed package, which never imports it. From Python, in the checkout:
``from benchmarks.measure import measure``. Not here: diagnosis of one installation (``tarpeg.diagnose``).
"""

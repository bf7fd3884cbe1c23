"""Where time goes and what to do about it: the monitor, its advice, the preview, the doctor.

Comparisons with other libraries belong in ``benchmarks``.
"""

"""Where time goes and what to do about it: the monitor, its advice, the preview, the doctor.

It does not belong here: comparison with other libraries (``benchmarks``).
"""

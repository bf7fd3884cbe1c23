"""Which samples come when, and which box of each: pure functions of numbers.

It does not belong here: anything that imports torch, reads a file or calls an operator.
"""

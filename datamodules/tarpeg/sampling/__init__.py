"""Which samples come in which batch, and which box of each image: pure functions of integers.

Modules that import torch, read image files or call an operator belong in other rooms.
"""

"""The operators: their Python faces, their fake kernels, and finding and compiling the native library.

Only this room uses ``torch.ops.tarpeg``. It does not belong here: anything that reads shards or draws random
numbers.
"""

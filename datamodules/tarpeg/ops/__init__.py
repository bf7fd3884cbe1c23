"""The operators: their Python functions, their fake kernels, and finding and compiling the native library.

Only this room uses ``torch.ops.tarpeg``. Not here: anything that reads shards or draws random
numbers.
"""

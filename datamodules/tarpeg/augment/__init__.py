"""What is done to a batch of pixels: the ``Augment`` module, its distortions, mixing.

It does not belong here: the operators themselves (``ops``), and which samples a batch holds (``sampling``).
"""

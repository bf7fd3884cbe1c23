"""Augmentation of a batch of pixels: the ``Augment`` module, its distortions, mixing.

Not here: the operators themselves (``ops``), and the choice of samples (``sampling``).
"""

"""Loaders over the shards of the ``photos`` fixture, and comparisons of what they yield."""

from __future__ import annotations

import hashlib
from dataclasses import fields

from tarpeg import Loader, LoaderConfig, RandomResizedCrop, Split

ALL = [f"k{number:04d}" for number in range(23)]
"""The keys of ``photos``, in the order of its shards."""


def load(source, crop=None, *, rank=0, world=1, shuffle=True, keys=True, split=None, pixels=None, **options):
    """A loader of batches of 4; by default random crops of 32 pixels, half of them flipped.

    ``options``: of ``LoaderConfig`` and of ``Split``.
    """
    names = {field.name for field in fields(LoaderConfig)} & set(options)
    if callable(options.get("decode")):  # of the split, which has a setting of this name too
        names.remove("decode")
    config = {name: options.pop(name) for name in names}
    split = split or Split(source, crop or RandomResizedCrop(32), **{"flip": 0.5, **options})
    config = LoaderConfig(**{"batch_size": 4, **config})
    loader = Loader(split, training=shuffle, keys=keys, rank=rank, world=world, config=config)
    if pixels is not None:
        loader.pixels = pixels
    return loader


def keys_of(loader):
    """The keys of the loader's next epoch."""
    return [key for batch in loader for key in batch.key]


def digest(batches):
    """A hash of all images, labels and keys."""
    sha = hashlib.sha256()
    for batch in batches:
        for images in batch.image if isinstance(batch.image, list) else [batch.image]:
            sha.update(images.movedim(-3, -1).contiguous().numpy().tobytes())
        sha.update(batch.label.numpy().tobytes() + repr(batch[2:]).encode())
    return sha.hexdigest()


RUNNERS = [
    {"workers": 0, "threads": 0},
    {"workers": 0, "threads": 1},
    {"workers": 0, "threads": 0, "readahead": 3},
    {"workers": 0, "threads": 2, "prefetch": 1, "readahead": 3},
    {"workers": 0, "threads": 3, "prefetch": 5},
    {"workers": 1},
    {"workers": 2, "prefetch": 1, "readahead": 3},
    {"workers": 3, "prefetch": 4},
]
"""Settings of a loader: in the calling thread, in threads, in processes."""


def name_of(settings):
    """The id of a test with these settings, such as w2-p1."""
    return "-".join(f"{name[0]}{value}" for name, value in settings.items())

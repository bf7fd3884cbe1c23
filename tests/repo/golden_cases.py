"""Cases of test_golden_batches.py: batches of every kind of split, resuming, streams and augmentation.

A case is a function of (sources, **options); what it returns is hashed. Only public names of tarpeg are used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import tarpeg
import torch
from helpers.small_tars import write_tar
from torch import Tensor, nn

GOLDEN = Path(__file__).parent / "golden"
MTIME = 1_700_000_000 * 10**9  # of every fixture, in ns: indexes and caches compare it

CASES: dict[str, Callable[[Sources], object]] = {}


def case(name: str, /, **options: Any) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Register a function of (sources, **options) whose result is hashed under that name."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        assert name not in CASES, name
        CASES[name] = partial(function, **options)
        return function

    return register


# --- fixtures and hashes


def write_shard(path: Path, samples: Iterable[list[tuple[str, bytes]]]) -> None:
    """Write a shard of (name, bytes) members; always the same bytes and the same mtime."""
    write_tar(path, itertools.chain.from_iterable(samples), tarfile.USTAR_FORMAT)
    os.utime(path, ns=(MTIME, MTIME))


def sample(number: int, name: str, folder: str = "images") -> list[tuple[str, bytes]]:
    """Members of sample number: the picture of that name, labels, JSON and a caption."""
    path = GOLDEN / folder / name
    fields = {"breed": number % 7, "object": [{"id": 3 * number}]}
    contents = {"cls": b"%d" % (number % 5), "json": json.dumps(fields).encode(), "txt": name.encode()}
    members = {path.suffix[1:]: path.read_bytes(), **contents}
    return [(f"k{number:04d}.{extension}", data) for extension, data in members.items()]


def names_in(folder: str) -> list[str]:
    """Sorted relative names of the pictures in a fixture folder."""
    root = GOLDEN / folder
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


class Sources:
    """Shards and folders of the fixture pictures, in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = itertools.count()

    @cached_property
    def shards(self) -> Path:
        """Folder of a.tar, b.tar and c.tar: all pictures of images/."""
        folder = self.fresh()
        samples = [sample(number, name) for number, name in enumerate(names_in("images"))]
        for start, name in enumerate("abc"):
            write_shard(folder / f"{name}.tar", samples[start::3])
        os.environ["GOLDEN_SHARDS"] = str(folder)  # the streams' URLs name it so: they are part of the draws
        return folder

    @cached_property
    def broken(self) -> Path:
        """Folder of one shard in which some pictures are damaged."""
        folder = self.fresh()
        good = [sample(number, name) for number, name in enumerate(names_in("images")[:12])]
        bad = [sample(number, name, "broken") for number, name in enumerate(names_in("broken"), start=12)]
        write_shard(folder / "d.tar", [*good[:5], *bad, *good[5:]])
        return folder

    @cached_property
    def images(self) -> Path:
        """Folder of images, with one folder per class."""
        folder = shutil.copytree(GOLDEN / "images", self.fresh() / "images")
        for path in folder.rglob("*.*"):
            os.utime(path, ns=(MTIME, MTIME))
        return folder

    def fresh(self) -> Path:
        """Empty folder."""
        folder = self.folder / str(next(self._count))
        folder.mkdir()
        return folder


def parts_of(value: object) -> Iterator[bytes]:
    """Bytes that represent a value: tensors, tuples, dicts, paths of files and plain values."""
    if isinstance(value, Tensor):
        is_last = value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last)
        order = "channels_last" if is_last else "contiguous" if value.is_contiguous() else "other"
        yield f"{value.dtype} {list(value.shape)} {order}".encode()
        yield value.contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""
    elif isinstance(value, Path):
        yield value.name.encode()
        yield value.read_bytes()
    elif isinstance(value, dict):
        yield from parts_of(sorted(value.items()))
    elif isinstance(value, (list, tuple)):
        yield f"{len(value)} {getattr(value, '_fields', '')}".encode()
        for item in value:
            yield from parts_of(item)
    else:
        assert isinstance(value, (str, bytes, int, float, type(None))), type(value)
        yield repr(value).encode()


def digest(value: object) -> str:
    """SHA-256 of a value, in hexadecimal digits."""
    sha = hashlib.sha256()
    for part in parts_of(value):
        sha.update(b"%d:" % len(part) + part)
    return sha.hexdigest()


def noise(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Fixed pseudo-random levels 0 to 255."""
    count = int(np.prod(shape))
    words = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    return torch.from_numpy((words >> np.uint64(56)).astype(np.uint8).reshape(shape)).to(dtype)


# --- batches


def module(split: tarpeg.Split, kind: str = "train", **options: Any) -> tarpeg.ShardDataModule:
    """Data module of one split, batches of 8 and no helpers unless given."""
    defaults = {"batch_size": 8, "workers": 0, "threads": None if options.get("workers") else 0, "seed": 5}
    return tarpeg.ShardDataModule(**{kind: split}, **{**defaults, **options})


def drain(data: tarpeg.ShardDataModule, kind: str = "train", epochs: int = 2) -> list[object]:
    """Batches of some epochs, the lengths, the state after each epoch, and the number of substitutes."""
    loader = getattr(data, f"{kind}_dataloader")()
    is_raw = data.augment is None
    found: list[object] = []
    for _ in range(epochs):
        found += [list(loader if is_raw else data.augmented(loader)), loader.state_dict()]
    data.teardown()
    return [*found, loader.substituted]


RRC, CENTER = tarpeg.RandomResizedCrop(24), tarpeg.CenterCrop(24)
FEEDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "random_resized_crop": ({}, {}),
    "random_resized_crop_options": (
        {"crop": tarpeg.RandomResizedCrop((20, 33), scale=(0.3, 0.9), ratio=(0.5, 2.0)), "flip": 1.0},
        {"keys": True},
    ),
    "random_crop": ({"crop": tarpeg.RandomCrop(32), "flip": 0.5}, {}),
    "random_crop_large": ({"crop": tarpeg.RandomCrop((150, 90))}, {"batch_size": 4}),
    "center_crop": ({"crop": tarpeg.CenterCrop((31, 17))}, {}),
    "center_crop_shorter": ({"crop": tarpeg.CenterCrop(24, shorter=29), "flip": 0.3}, {}),
    "whole": ({"crop": tarpeg.Whole((19, 40))}, {}),
    "progressive": ({"crop": tarpeg.Progressive(RRC, {0: 12, 1: (16, 20)})}, {}),
    "nearest": ({"interpolation": "nearest"}, {}),
    "nearest_exact": ({"interpolation": "nearest-exact"}, {}),
    "views": ({"views": 3, "flip": 0.5}, {}),
    "views_of_several_crops": ({"crop": [RRC, tarpeg.RandomCrop(24), CENTER], "flip": 0.5}, {"keys": True}),
    "subset_fraction": ({"subset": 0.4}, {"keys": True}),
    "subset_list": ({"subset": [3, 1, 4, 15, 9, 26, 5, 30]}, {"keys": True, "batch_size": 3}),
    "weights": ({"weights": [0.2 + 0.3 * (n % 4) for n in range(31)], "flip": 0.5}, {"keys": True}),
    "weights_of_a_subset": (
        {"weights": [n % 5 for n in range(31)], "subset": list(range(0, 31, 2)), "views": 2},
        {"keys": True},
    ),
    "blocks": ({"shuffle": tarpeg.Blocks(size=4, buffer=3)}, {"keys": True}),
    "blocks_by_name": ({"shuffle": "blocks"}, {"keys": True}),
    "no_shuffle": ({"shuffle": False}, {"keys": True}),
    "threads": ({"flip": 0.5}, {"threads": 2, "prefetch": 3}),
    "workers": ({"flip": 0.5}, {"workers": 2}),
    "workers_views": ({"flip": 0.5, "views": 2}, {"workers": 2, "keys": True}),
    "readahead": ({}, {"threads": 2, "readahead": 4}),
    "global_batch_size": ({}, {"global_batch_size": 7}),
    "drop_last": ({}, {"drop_last": True}),
    "seed_0": ({}, {"seed": 0, "keys": True}),
    "seed_large": ({}, {"seed": 2**62 + 3, "keys": True}),
    "label_of_json": ({"target": "json:breed"}, {}),
    "labels": ({"target": ["cls", "json:object.0.id"]}, {}),
    "no_label": ({"target": None}, {}),
    "members": ({"members": ["txt", "json"]}, {}),
}


@case("feed/extra", crop=RRC, members=["txt", "cls"], decode=lambda key, members: [key, len(members["txt"])])
def feed(
    sources: Sources, *, data: dict[str, Any] | None = None, kind: str = "train", **split: Any
) -> object:
    options = {"crop": RRC, **split}
    return drain(
        module(tarpeg.Split(options.pop("shards", sources.shards), **options), kind, **data or {}), kind
    )


for _name, (_split, _data) in FEEDS.items():
    case(f"feed/{_name}", data=_data, **_split)(feed)
for _kind in ("val", "test", "predict"):
    case(f"feed/{_kind}", kind=_kind, crop=CENTER)(feed)


@case("feed/broken", options={})
@case("feed/broken_workers", options={"workers": 2})
@case("feed/broken_subset", options={}, subset=[4, 5, 6, 7, 8, 9, 10, 11])
def feed_broken(sources: Sources, options: dict[str, Any], **split: Any) -> object:
    return feed(sources, shards=sources.broken, data={"keys": True, "max_bad": 1.0, **options}, **split)


@case("feed/raise")
def feed_raise(sources: Sources) -> object:
    loader = module(tarpeg.Split(sources.broken, RRC), on_error="raise").train_dataloader()
    found = []
    with pytest.raises(tarpeg.DecodeError):
        found.extend(loader)
    return found


@case("feed/pictures")
def feed_pictures(sources: Sources) -> object:
    return feed(sources, shards=str(sources.images), kind="predict", crop=CENTER, target=None)


@case("feed/patterns", pattern="{a,c}.tar")
@case("feed/glob", pattern="[ab].tar")
def feed_patterns(sources: Sources, pattern: str) -> object:
    return feed(sources, shards=f"{sources.shards}/{pattern}", data={"keys": True})


@case("feed/two_ranks", options={})
@case("feed/two_ranks_global_batch", options={"global_batch_size": 7})
def feed_two_ranks(sources: Sources, options: dict[str, Any]) -> object:
    def gather(found: list[Any], mine: Any) -> None:
        found[:] = [mine] * len(found)

    ranks = []
    for rank in (0, 1):  # torch's public functions stand in for a process group
        names = {"is_available": lambda: True, "is_initialized": lambda: True, "get_world_size": lambda: 2}
        names |= {"get_rank": lambda rank=rank: rank, "all_gather_object": gather}
        with mock.patch.multiple(torch.distributed, **names):
            ranks.append(drain(module(tarpeg.Split(sources.shards, RRC), keys=True, **options)))
    return ranks


@case("resume/threads", options={"threads": 2})
@case("resume/workers", options={"workers": 2})
@case("resume/weights", options={}, weights=[1 + n % 3 for n in range(31)], shuffle=tarpeg.Blocks(4, 2))
def resume(sources: Sources, options: dict[str, Any], **split: Any) -> object:
    found: list[object] = []
    for at in (0, 1, 3, 4):
        first, second = (module(tarpeg.Split(sources.shards, RRC, **split), **options) for _ in range(2))
        loader = first.train_dataloader()
        list(loader)
        for _, _ in zip(range(at), loader, strict=False):
            pass
        state = json.loads(json.dumps(loader.state_dict()))
        other = second.train_dataloader()
        other.load_state_dict(state)
        found += [state, list(other), list(other)]
        first.teardown()
        second.teardown()
    return found


@case("stream/pass", streaming=True)
@case("stream/samples", streaming=tarpeg.Streaming(samples=40, buffer=5))
@case("stream/no_shuffle", streaming=True, shuffle=False, views=2)
@case("stream/workers", streaming=tarpeg.Streaming(samples=20, buffer=7), options={"workers": 2})
@case("stream/threads", streaming=True, options={"threads": 2, "drop_last": True})
def stream(sources: Sources, options: dict[str, Any] | None = None, **split: Any) -> object:
    assert sources.shards.is_dir()
    urls = "pipe:cat $GOLDEN_SHARDS/{a,b,c}.tar"  # a sample's draws depend on the text of its URL
    data = module(tarpeg.Split(urls, RRC, flip=0.5, **split), keys=True, **options or {})
    return drain(data)


@case("stream/resume")
def stream_resume(sources: Sources) -> object:
    assert sources.shards.is_dir()
    split = tarpeg.Split(
        "pipe:cat $GOLDEN_SHARDS/{a,b}.tar", RRC, streaming=tarpeg.Streaming(samples=24, buffer=4)
    )
    loader, other = (module(split, keys=True).train_dataloader() for _ in range(2))
    batch = next(iter(loader))
    other.load_state_dict(loader.state_dict())
    return [batch, loader.state_dict(), list(other)]


# --- augmentation


def all_of(**options: Any) -> tarpeg.Augment:
    """Augment with every distortion."""
    return tarpeg.Augment(
        flip=0.5,
        affine=tarpeg.Affine(degrees=20, scale=(0.7, 1.3), shear=8, translate=0.1, probability=0.8),
        color=tarpeg.Color(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, probability=0.9),
        erase=tarpeg.Erase(probability=0.5),
        mask=tarpeg.Mask(ratio=0.1, cells=6),
        **options,
    )


AUGMENTS: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: tarpeg.Augment(mean=(0, 0, 0), std=(1, 1, 1)),
    "imagenet": tarpeg.Augment,
    "all": all_of,
    "flip_ycbcr": lambda: tarpeg.Augment(flip=0.5, space="ycbcr", fill=(10, 128, 100)),
    "all_bfloat16": lambda: all_of(dtype="bfloat16", fill=7, memory_format="channels_last"),
    "all_float16": lambda: all_of(dtype="float16", space="ycbcr", memory_format="contiguous"),
    "affine": lambda: tarpeg.Augment(affine=tarpeg.Affine(degrees=(10, 40), translate=(0.05, 0.2))),
    "color": lambda: tarpeg.Augment(color=tarpeg.Color(brightness=(0.5, 1.5), hue=0.5)),
    "erase": lambda: tarpeg.Augment(erase=tarpeg.Erase(1.0, area=(0.1, 0.4)), fill=(1, 2, 3)),
    "mask": lambda: tarpeg.Augment(mask=tarpeg.Mask(0.25, (4, 5), dilate=False, probability=0.5)),
    "mixup": lambda: tarpeg.Augment(mix=tarpeg.Mix(classes=5, mixup=0.4, cutmix=0)),
    "mix": lambda: all_of(mix=tarpeg.Mix(classes=5)),
}


@case("augment/views", name="all", views=2)
@case("augment/weights", name="all", weights=[1 + n % 3 for n in range(31)])
@case("augment/workers", name="mix", options={"workers": 2})
@case("augment/val", name="mix", kind="val")
def augment(
    sources: Sources, name: str, kind: str = "train", options: dict[str, Any] | None = None, **split: Any
) -> object:
    data = module(tarpeg.Split(sources.shards, RRC, **split), kind, augment=AUGMENTS[name](), **options or {})
    return drain(data, kind)


for _name in AUGMENTS:
    case(f"augment/{_name}", name=_name)(augment)


@case("augment/called_alone")
def augment_alone(sources: Sources) -> object:
    made, images = all_of(), noise(6, 3, 20, 26)
    params = made.params([7, 8, 9], (20, 26), seed=4, epoch=2, occurrence=[0, 1, 0], views=2)
    return [made(images), made(images), made(images, params), params, made.eval()(images)]

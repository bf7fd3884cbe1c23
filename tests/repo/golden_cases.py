"""Cases of test_golden_batches.py: batches of every kind of split, resuming, streams and augmentation.

A case is a function of (sources, **options); what it returns is hashed. Only public names of tarpeg are used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
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
from torchvision.transforms import v2

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
        order = "contiguous" if value.is_contiguous() else "other"
        order = "channels_last" if is_last else order
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

RRC, CENTER = tarpeg.RandomResizedCrop(24), tarpeg.CenterCrop(24)
WIDE = tarpeg.RandomResizedCrop((20, 33), scale=(0.3, 0.9), ratio=(0.5, 2.0))
EVEN = list(range(0, 31, 2))
EXACT: dict[str, Any] = {"fidelity": "exact", "flip": 0.5}
TWO_SIZES = [RRC] * 2 + [tarpeg.RandomResizedCrop((10, 14), scale=(0.05, 0.4))] * 3
OF_SPLIT = {field.name for field in fields(tarpeg.Split)}


def by_all_generators(image: Tensor) -> Tensor:
    """Step of a transform: levels moved by numbers of torch, numpy and Python."""
    moved = torch.randint(0, 99, (1,)) + np.random.randint(99) + random.randrange(99)
    return image.roll(int(moved), 2) + moved.to(torch.uint8)


NATIVE = v2.Compose(
    [
        v2.RandomResizedCrop(24, antialias=True),
        v2.RandomHorizontalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]),
    ]
)


def module(shards: Any, kind: str = "train", **options: Any) -> tarpeg.ShardDataModule:
    """Data module of one split, batches of 8 and no helpers unless given; options of both."""
    split = {name: options.pop(name) for name in OF_SPLIT & set(options)}
    defaults = {"batch_size": 8, "workers": 0, "threads": None if options.get("workers") else 0, "seed": 5}
    options[kind] = tarpeg.Split(shards, **{"crop": RRC, **split})
    return tarpeg.ShardDataModule(**{**defaults, **options})


def recorded(state: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a state that there were when the values were recorded: the position."""
    return {name: value for name, value in state.items() if name not in ("version", "data")}


def drain(data: tarpeg.ShardDataModule, kind: str = "train") -> list[object]:
    """Batches of two epochs, the lengths, the state after each epoch, and the number of substitutes."""
    loader = getattr(data, f"{kind}_dataloader")()
    is_raw = data.augment is None
    found: list[object] = []
    for _ in range(2):
        found += [list(loader if is_raw else data.augmented(loader)), recorded(loader.state_dict())]
    data.teardown()
    return [*found, loader.substituted]


@case("feed/random_resized_crop")
@case("feed/random_resized_crop_options", crop=WIDE, flip=1.0, keys=True)
@case("feed/random_crop", crop=tarpeg.RandomCrop(32), flip=0.5)
@case("feed/random_crop_large", crop=tarpeg.RandomCrop((150, 90), enlarge_if_needed=True), batch_size=4)
@case("feed/center_crop", crop=tarpeg.CenterCrop((31, 17)))
@case("feed/center_crop_shorter", crop=tarpeg.CenterCrop(24, shorter=29), flip=0.3)
@case("feed/whole", crop=tarpeg.Whole((19, 40)))
@case("feed/progressive", crop=tarpeg.Progressive(RRC, {0: 12, 1: (16, 20)}))
@case("feed/nearest", interpolation="nearest")
@case("feed/nearest_exact", interpolation="nearest-exact")
@case("feed/views", views=3, flip=0.5)
@case("feed/views_of_several_crops", crop=[RRC, tarpeg.RandomCrop(24), CENTER], flip=0.5, keys=True)
@case("feed/subset_fraction", subset=0.4, keys=True)
@case("feed/subset_list", subset=[3, 1, 4, 15, 9, 26, 5, 30], keys=True, batch_size=3)
@case("feed/weights", weights=[0.2 + 0.3 * (n % 4) for n in range(31)], flip=0.5, keys=True)
@case("feed/weights_of_a_subset", weights=[n % 5 for n in range(31)], subset=EVEN, views=2, keys=True)
@case("feed/blocks", shuffle=tarpeg.Blocks(size=4, buffer=3), keys=True)
@case("feed/blocks_by_name", shuffle="blocks", keys=True)
@case("feed/no_shuffle", shuffle=False, keys=True)
@case("feed/threads", flip=0.5, threads=2, prefetch=3)
@case("feed/workers", flip=0.5, workers=2)
@case("feed/workers_views", flip=0.5, views=2, workers=2, keys=True)
@case("feed/readahead", threads=2, readahead=4)
@case("feed/global_batch_size", global_batch_size=7)
@case("feed/drop_last", drop_last=True)
@case("feed/seed_0", seed=0, keys=True)
@case("feed/seed_large", seed=2**62 + 3, keys=True)
@case("feed/label_of_json", target="json:breed")
@case("feed/labels", target=["cls", "json:object.0.id"])
@case("feed/no_label", target=None)
@case("feed/members", members=["txt", "json"])
@case("feed/extra", members=["txt", "cls"], decode=lambda key, members: [key, len(members["txt"])])
@case("feed/val", kind="val", crop=CENTER)
@case("feed/test", kind="test", crop=CENTER)
@case("feed/predict", kind="predict", crop=CENTER)
@case("feed/pictures", source="images", kind="predict", crop=CENTER, target=None)
@case("feed/broken", source="broken", keys=True, max_bad=1.0)
@case("feed/broken_workers", source="broken", keys=True, max_bad=1.0, workers=2)
@case("feed/broken_subset", source="broken", keys=True, max_bad=1.0, subset=[4, 5, 6, 7, 8, 9, 10, 11])
@case("feed/patterns", pattern="/{a,c}.tar", keys=True)
@case("feed/glob", pattern="/[ab].tar", keys=True)
def feed(
    sources: Sources, *, source: str = "shards", pattern: str = "", kind: str = "train", **options: Any
) -> object:
    return drain(module(f"{getattr(sources, source)}{pattern}", kind, **options), kind)


@case("exact/bilinear")
@case("exact/bicubic", interpolation="bicubic")
@case("exact/lanczos", interpolation="lanczos")
@case("exact/box", interpolation="box")
@case("exact/gray", channels=1)
@case("exact/views_of_two_sizes", crop=TWO_SIZES, keys=True)
@case("exact/repeats", repeats=3, keys=True)
@case("exact/repeats_of_blocks", repeats=2, keys=True, shuffle=tarpeg.Blocks(4, 2))
@case("exact/transform", transform=by_all_generators)
@case("exact/transform_workers", transform=by_all_generators, workers=2)
@case("exact/transform_views", transform=[by_all_generators, lambda image: 255 - image])
@case("exact/transform_native", transform=NATIVE, crop=None, flip=0.0)
@case("exact/transform_policy", transform=v2.Compose([tarpeg.AugMix(), *NATIVE.transforms[2:]]))
def feed_exactly(sources: Sources, **options: Any) -> object:
    """Batches that do not depend on how fast mode resizes."""
    return feed(sources, **{**EXACT, **options})


@case("feed/raise")
def feed_raise(sources: Sources) -> object:
    loader = module(sources.broken, on_error="raise").train_dataloader()
    found = []
    with pytest.raises(tarpeg.DecodeError):
        found.extend(loader)
    return found


@case("feed/two_ranks")
@case("feed/two_ranks_global_batch", global_batch_size=7)
def feed_two_ranks(sources: Sources, **options: Any) -> object:
    def gather(found: list[Any], mine: Any) -> None:
        found[:] = [(rank, *mine[1:]) for rank in range(len(found))]

    ranks = []
    for rank in (0, 1):  # torch's public functions stand in for a process group
        names = {"is_available": lambda: True, "is_initialized": lambda: True, "get_world_size": lambda: 2}
        names |= {"get_rank": lambda rank=rank: rank, "all_gather_object": gather}
        no_store = mock.patch.object(torch.distributed.distributed_c10d, "_get_default_store", None)
        with mock.patch.multiple(torch.distributed, **names), no_store:
            ranks.append(drain(module(sources.shards, keys=True, **options)))
    return ranks


@case("resume/threads", threads=2)
@case("resume/workers", workers=2)
@case("resume/weights", weights=[1 + n % 3 for n in range(31)], shuffle=tarpeg.Blocks(4, 2))
def resume(sources: Sources, **options: Any) -> object:
    found: list[object] = []
    for at in (0, 1, 3, 4):
        first, second = (module(sources.shards, **options) for _ in range(2))
        loader = first.train_dataloader()
        list(loader)
        list(itertools.islice(loader, at))
        state = json.loads(json.dumps(loader.state_dict()))
        other = second.train_dataloader()
        other.load_state_dict(state)
        found += [recorded(state), list(other), list(other)]
        first.teardown()
        second.teardown()
    return found


def streamed(sources: Sources, names: str = "{a,b,c}", **options: Any) -> tarpeg.ShardDataModule:
    """Data module of a stream of shards; the text of a sample's URL is part of its draws."""
    os.environ["GOLDEN_SHARDS"] = str(sources.shards)
    return module(f"pipe:cat $GOLDEN_SHARDS/{names}.tar", keys=True, **options)


@case("stream/pass", streaming=True)
@case("stream/samples", streaming=tarpeg.Streaming(samples=40, buffer=5))
@case("stream/no_shuffle", streaming=True, shuffle=False, views=2)
@case("stream/workers", streaming=tarpeg.Streaming(samples=20, buffer=7), workers=2)
@case("stream/threads", streaming=True, threads=2, drop_last=True)
def stream(sources: Sources, **options: Any) -> object:
    return drain(streamed(sources, flip=0.5, **options))


@case("stream/resume")
def stream_resume(sources: Sources) -> object:
    options = {"streaming": tarpeg.Streaming(samples=24, buffer=4)}
    loader, other = (streamed(sources, "{a,b}", **options).train_dataloader() for _ in range(2))
    batch = next(iter(loader))
    other.load_state_dict(loader.state_dict())
    return [batch, recorded(loader.state_dict()), list(other)]


# --- augmentation


def all_of(**options: Any) -> tarpeg.Augment:
    """Augment with every distortion."""
    return tarpeg.Augment(
        flip=0.5,
        affine=tarpeg.Affine(degrees=20, scale=(0.7, 1.3), shear=8, translate=0.1, probability=0.8),
        color=tarpeg.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, probability=0.9),
        erase=tarpeg.Erase(probability=0.5),
        mask=tarpeg.GridMask(ratio=0.1, cells=6),
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
    "color": lambda: tarpeg.Augment(color=tarpeg.ColorJitter(brightness=(0.5, 1.5), hue=0.5)),
    "erase": lambda: tarpeg.Augment(erase=tarpeg.Erase(1.0, area=(0.1, 0.4)), fill=(1, 2, 3)),
    "mask": lambda: tarpeg.Augment(mask=tarpeg.GridMask(0.25, (4, 5), dilate=False, probability=0.5)),
    "mixup": lambda: tarpeg.Augment(mix=tarpeg.Mix(classes=5, mixup=0.4, cutmix=0)),
    "mix": lambda: all_of(mix=tarpeg.Mix(classes=5)),
}


@case("augment/views", name="all", views=2)
@case("augment/weights", name="all", weights=[1 + n % 3 for n in range(31)])
@case("augment/workers", name="mix", workers=2)
@case("augment/val", name="mix", kind="val")
def augment(sources: Sources, name: str, **options: Any) -> object:
    return feed(sources, augment=AUGMENTS[name](), **options)


for _name in AUGMENTS:
    case(f"augment/{_name}", name=_name)(augment)


POLICIES: dict[str, Callable[[], object]] = {
    "rand_augment": lambda: tarpeg.RandAugment(2, 9),
    "rand_augment_bilinear": lambda: tarpeg.RandAugment(3, 20, interpolation="bilinear", fill=(9, 99, 199)),
    "trivial_augment_wide": tarpeg.TrivialAugmentWide,
    "auto_augment": tarpeg.AutoAugment,
    "aug_mix": tarpeg.AugMix,
    "timm_rand_augment": lambda: tarpeg.TimmRandAugment("rand-m7-mstd0.5-inc1"),
    "three_augment": lambda: [tarpeg.ThreeAugment(), tarpeg.ColorJitter(0.3, 0.3, 0.3)],
    "dino": lambda: [
        tarpeg.ColorJitter(0.4, 0.4, 0.2, 0.1, probability=0.8),
        tarpeg.Grayscale(probability=0.2),
        tarpeg.GaussianBlur(9, probability=0.5),
        tarpeg.Solarize(probability=0.2),
    ],
}
for _name, _policy in POLICIES.items():
    case(f"policy/{_name}", make=_policy)(
        lambda sources, make: feed_exactly(sources, augment=tarpeg.Augment(policy=make()))
    )


@case("policy/views_of_two_sizes")
def policy_of_views(sources: Sources) -> object:
    policies = [tarpeg.RandAugment(1, 9), tarpeg.AugMix(), *[tarpeg.TrivialAugmentWide()] * 3]
    modules = nn.ModuleList([tarpeg.Augment(policy=policy) for policy in policies])
    return feed_exactly(sources, crop=TWO_SIZES, augment=modules)


@case("augment/called_alone")
def augment_alone(sources: Sources) -> object:
    made, images = all_of(), noise(6, 3, 20, 26)
    params = made.params([7, 8, 9], (20, 26), seed=4, epoch=2, occurrence=[0, 1, 0], views=2)
    return [made(images), made(images), made(images, params), params, made.eval()(images)]

"""Cases of test_golden_batches.py: Lightning, caches, shards that tarpeg writes, and files of before."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import lightning
import tarpeg
import torch
from golden_cases import AUGMENTS, CENTER, GOLDEN, MTIME, RRC, Sources, case, digest, drain, feed, module
from helpers.training import trainer
from torch import Tensor, nn

BEFORE = GOLDEN / "before"

# --- Lightning


class Net(lightning.LightningModule):
    """A tiny network that keeps the batches that it receives."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 5)
        self.seen: list[object] = []

    def training_step(self, batch: Any, _: int) -> Tensor:
        self.seen.append(type(batch)(*(p.clone() if isinstance(p, Tensor) else p for p in batch)))
        return nn.functional.cross_entropy(self.net(batch.image.float().mean((2, 3))), batch.label)

    def validation_step(self, batch: Any, number: int) -> None:
        self.training_step(batch, number)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


@case("lightning/normalised_by_the_decoder", name="imagenet")
@case("lightning/distorted_by_a_worker", name="mix", workers=1)
@case("lightning/distorted_on_arrival", name="all")
def fit(sources: Sources, name: str, **options: Any) -> object:
    train, val = (tarpeg.Split(sources.shards, crop) for crop in (RRC, CENTER))
    data = module(train, val=val, augment=AUGMENTS[name](), **options)
    net = Net()
    trainer(sources.fresh(), max_epochs=2, num_sanity_val_steps=0).fit(net, datamodule=data)
    return net.seen


# --- caches and shards


def files_of(folder: Path) -> object:
    """Shards, indexes and manifest of a cache, without what depends on its place, the version or words."""
    content = json.loads((folder / "manifest.json").read_bytes())
    for name in ("tarpeg", "source"):
        del content[name]
    for part in (content, *content["shards"]):
        part["untiled"] = sorted(part["untiled"].values())  # its keys are reasons in words
    for bad in content["quarantine"]:
        bad["shard"] = Path(bad["shard"]).name
        del bad["reason"]
    others = {path.name for path in folder.iterdir()} - {"manifest.json"}
    shards = [folder / name for name in sorted(others) if not name.startswith(".")]
    assert {path.suffix for path in shards} == {".tar", ".idx"}
    return [content, shards]


LOSSLESS = tarpeg.Tiled(quality=None)
LAYOUTS = {
    "samples": tarpeg.Layout(samples_per_shard=7),
    "bytes": tarpeg.Layout(bytes_per_shard=60_000),
    "shuffle": tarpeg.Layout(shuffle=True, seed=3),
    "shuffle_and_cut": tarpeg.Layout(shuffle=True, samples_per_shard=9),
}


@case("cache/tiled", codec=LOSSLESS)
@case("cache/tiled_64", codec=tarpeg.Tiled(64, quality=None))
@case("cache/raw", codec=tarpeg.Raw())
@case("cache/quarantine", codec=LOSSLESS, source="broken", max_bad=1.0)
@case("cache/folder", codec=LOSSLESS, source="images", layout=tarpeg.Layout(samples_per_shard=10))
@case("pillow/cache/tiled", codec=tarpeg.Tiled())
@case("pillow/cache/resized", codec=tarpeg.Resized(40))
@case("pillow/cache/raw_shorter", codec=tarpeg.Raw(shorter=40))
def cache(sources: Sources, source: str = "shards", executor: int = 0, **options: Any) -> object:
    folder = sources.fresh()
    report = tarpeg.build_cache(getattr(sources, source), folder, executor=executor, **options)
    assert tarpeg.verify_cache(folder, 0).is_good
    again = tarpeg.build_cache(getattr(sources, source), folder, executor=executor, **options)
    assert (report.built, again.built) == (report.shards, 0)
    return [files_of(folder), feed(sources, shards=folder, flip=0.5, data={"keys": True})]


for _name, _layout in LAYOUTS.items():
    case(f"cache/layout_{_name}", codec=LOSSLESS, layout=_layout)(cache)


@case("cache/data_module")
def cached_shards(sources: Sources) -> object:
    out = sources.fresh()
    prepare = tarpeg.CachedShards(str(sources.shards), str(out), codec=LOSSLESS, workers=0)
    return feed(sources, shards=f"{out}/*.tar", data={"prepare": prepare, "keys": True})


@case("shards/folder")
def folder_shards(sources: Sources) -> object:
    out = sources.fresh()
    prepare = tarpeg.FolderShards(str(sources.images), str(out), seed=2, samples_per_shard=10, workers=0)
    found = feed(sources, shards=f"{out}/train-*.tar", data={"prepare": prepare, "keys": True})
    made = sorted(path for path in out.iterdir() if path.suffix == ".tar" or path.name == "classes.json")
    return [found, made]


PHOTOS = {"size": [40, (50, 70)], "progressive": 0.3, "gray": 0.3, "exif": 0.3, "corrupt": 0.2, "seed": 3}


@case("pillow/shards/photos", workers=0)
@case("pillow/shards/photos_workers", workers=2)
def photos(sources: Sources, workers: int) -> object:
    out = sources.fresh()
    report = tarpeg.make_shards(out, PHOTOS, 20, prefix="x", samples_per_shard=8, workers=workers)
    return [report.samples, report.bytes, list(report.shards)]


# --- files of before

STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "blocks": {
        "shuffle": tarpeg.Blocks(2, 2),
        "weights": [1, 2, 1, 3, 1, 1, 2, 1],
        "subset": [0, 1, 2, 3, 5, 7],
    },
}


def before_module(shards: Path, keys: bool = True, **split: Any) -> tarpeg.ShardDataModule:
    """Data module that the states and the checkpoint were made with."""
    split_of = tarpeg.Split(shards, tarpeg.RandomResizedCrop(16), flip=0.5, **split)
    return module(split_of, batch_size=2, keys=keys)


def SYNTHETIC(out: Path) -> tarpeg.SyntheticShards:  # noqa: N802
    """Synthetic shards of before."""
    return tarpeg.SyntheticShards(str(out), train=3, val=2, photos={"size": 24}, workers=0)


def copied(sources: Sources) -> Path:
    """Copy of golden/before/plain.tar with its index beside it, as they lay when the index was made."""
    folder = sources.fresh()
    shutil.copy(BEFORE / "plain.tar", folder / "plain.tar")
    shutil.copy(BEFORE / "plain.index.npz", folder / "plain.tarpeg.npz")
    for path in folder.iterdir():
        os.utime(path, ns=(MTIME, MTIME))
    return folder


def without_headers(path: Path) -> None:
    """Overwrite the first header of a tar: what still opens it does so by an index."""
    with path.open("r+b") as file:
        file.write(bytes(512))
    os.utime(path, ns=(MTIME, MTIME))


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Files of a folder, hidden ones left out: size, mtime and inode of each."""
    found = {path.name: path.stat() for path in folder.iterdir() if not path.name.startswith(".")}
    return {name: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found.items()}


@case("before/index")
def before_index(sources: Sources) -> object:
    folder, other = copied(sources), copied(sources)
    (other / "plain.tarpeg.npz").unlink()
    without_headers(folder / "plain.tar")
    known = stamps(folder)
    found = drain(before_module(folder))
    assert digest(found) == digest(drain(before_module(other))), "a new index gives other batches"
    assert stamps(folder) == known, "the index was written again"
    return found


@case("before/cache")
def before_cache(sources: Sources) -> object:
    source = copied(sources)
    folder = shutil.copytree(BEFORE / "cache", sources.fresh() / "cache")
    known = stamps(folder)
    report = tarpeg.build_cache(source / "plain.tar", folder, LOSSLESS, 0)
    assert (report.built, report.samples) == (0, 8)
    assert tarpeg.verify_cache(folder, 0).is_good
    tarpeg.CachedShards("/nonexistent", str(folder), codec=LOSSLESS, refresh=False)()
    assert stamps(folder) == known
    without_headers(folder / "plain.tar")
    return [files_of(folder)[0], drain(before_module(folder))]  # type: ignore[index]


@case("before/states")
def before_states(sources: Sources) -> object:
    states, found = json.loads((BEFORE / "states.json").read_text()), []
    for name, options in STATES.items():
        data = before_module(copied(sources), **options)
        loader = data.train_dataloader()
        loader.load_state_dict(states[name])
        rest = list(loader)
        whole = before_module(copied(sources), **options).train_dataloader()
        list(whole)
        assert digest(rest) == digest(list(whole)[2:])
        found += [rest, list(loader), states[name]]
    return found


@case("before/checkpoint")
def before_checkpoint(sources: Sources) -> object:
    net, data = Net(), before_module(copied(sources))
    run = trainer(sources.fresh(), max_epochs=3)
    run.fit(net, datamodule=data, ckpt_path=BEFORE / "run.ckpt")
    whole = before_module(copied(sources)).train_dataloader()
    expected = [batch for _ in range(3) for batch in whole][6:]
    assert digest(net.seen) == digest(expected), "six steps were done when the checkpoint was saved"
    return net.seen


@case("before/synthetic")
def before_synthetic(sources: Sources) -> object:
    folder = shutil.copytree(BEFORE / "synthetic", sources.fresh() / "synthetic")
    known = stamps(folder)
    SYNTHETIC(folder)()
    assert stamps(folder) == known, "the photographs were drawn again"
    return feed(sources, shards=f"{folder}/train-*.tar", data={"keys": True, "batch_size": 2})

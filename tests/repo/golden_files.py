"""Cases of test_golden_batches.py: Lightning, caches, shards that tarpeg writes, and files of before."""

from __future__ import annotations

import copy
import json
import os
import shutil
from pathlib import Path
from typing import Any

import tarpeg
from golden_cases import AUGMENTS, CENTER, GOLDEN, MTIME, Sources, case, digest, drain, module
from helpers.training import fitted
from lightning.pytorch.callbacks import LambdaCallback

BEFORE = GOLDEN / "before"

# --- Lightning


def seen_in(folder: Path, data: tarpeg.ShardDataModule, **settings: Any) -> list[object]:
    """Copies of the batches that a network receives."""
    seen: list[object] = []

    def keep(trainer: object, net: object, batch: Any, *_: int) -> None:
        seen.append(copy.deepcopy(batch))

    callback = LambdaCallback(on_train_batch_start=keep, on_validation_batch_start=keep)
    fitted(folder, data, callbacks=[callback], **settings)
    return seen


@case("lightning/normalised_by_the_decoder", name="imagenet")
@case("lightning/distorted_by_a_worker", name="mix", workers=1)
@case("lightning/distorted_on_arrival", name="all")
def fit(sources: Sources, name: str, **options: Any) -> object:
    val = tarpeg.Split(sources.shards, CENTER)
    data = module(sources.shards, val=val, augment=AUGMENTS[name](), allow_overlap=True, **options)
    return seen_in(sources.fresh(), data, max_epochs=2, num_sanity_val_steps=0)


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
    others = {path.name for path in folder.iterdir() if path.suffix != ".sizes"} - {"manifest.json"}
    shards = [folder / name for name in sorted(others) if not name.startswith(".")]
    assert {path.suffix for path in shards} == {".tar", ".idx"}
    return [content, shards]


LOSSLESS = tarpeg.Tiled(quality=None)


@case("cache/tiled", codec=LOSSLESS)
@case("cache/tiled_64", codec=tarpeg.Tiled(64, quality=None))
@case("cache/raw", codec=tarpeg.Raw())
@case("cache/quarantine", codec=LOSSLESS, source="broken", max_bad=1.0)
@case("cache/layout_samples", codec=LOSSLESS, layout=tarpeg.Layout(samples_per_shard=7))
@case("cache/layout_bytes", codec=LOSSLESS, layout=tarpeg.Layout(bytes_per_shard=60_000))
@case("cache/layout_shuffle", codec=LOSSLESS, layout=tarpeg.Layout(shuffle=True, seed=3))
@case("cache/layout_shuffle_and_cut", codec=LOSSLESS, layout=tarpeg.Layout(shuffle=True, samples_per_shard=9))
@case("cache/folder", codec=LOSSLESS, source="images", layout=tarpeg.Layout(samples_per_shard=10))
@case("pillow/cache/tiled", codec=tarpeg.Tiled(quality=95))
@case("pillow/cache/resized", codec=tarpeg.Resized(40))
@case("pillow/cache/raw_shorter", codec=tarpeg.Raw(shorter=40))
def cache(sources: Sources, source: str = "shards", **options: Any) -> object:
    folder = sources.fresh()
    report = tarpeg.build_cache(getattr(sources, source), folder, executor=0, **options)
    assert tarpeg.verify_cache(folder, 0).is_good
    again = tarpeg.build_cache(getattr(sources, source), folder, executor=0, **options)
    assert (report.built, again.built) == (report.shards, 0)
    return [files_of(folder), drain(module(folder, flip=0.5, keys=True))]


@case("cache/data_module")
def cached_shards(sources: Sources) -> object:
    out = sources.fresh()
    prepare = tarpeg.CachedShards(str(sources.shards), str(out), codec=LOSSLESS, workers=0)
    return drain(module(f"{out}/*.tar", prepare=prepare, keys=True))


@case("shards/folder")
def folder_shards(sources: Sources) -> object:
    out = sources.fresh()
    prepare = tarpeg.FolderShards(str(sources.images), str(out), seed=2, samples_per_shard=10, workers=0)
    found = drain(module(f"{out}/train-*.tar", prepare=prepare, keys=True))
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

WEIGHTS = [1, 2, 1, 3, 1, 1, 2, 1]
STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "blocks": {"shuffle": tarpeg.Blocks(2, 2), "weights": WEIGHTS, "subset": [0, 1, 2, 3, 5, 7]},
}


def before_module(shards: Path, **split: Any) -> tarpeg.ShardDataModule:
    """Data module that the states and the checkpoint were made with."""
    return module(shards, crop=tarpeg.RandomResizedCrop(16), flip=0.5, batch_size=2, keys=True, **split)


def copied(sources: Sources) -> Path:
    """Copy of golden/before/plain.tar with its index beside it, as they lay when the index was made."""
    folder = sources.fresh()
    shutil.copy(BEFORE / "plain.tar", folder / "plain.tar")
    shutil.copy(BEFORE / "plain.index.npz", folder / "plain.tarpeg.npz")
    for path in folder.iterdir():
        os.utime(path, ns=(MTIME, MTIME))
    return folder


def without_checksum(path: Path) -> None:
    """Overwrite the checksum of the first header of a tar: what still opens it does so by an index."""
    with path.open("r+b") as file:
        file.seek(148)
        file.write(bytes(8))
    os.utime(path, ns=(MTIME, MTIME))


def stamps(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Files of a folder, hidden ones left out: size, mtime and inode of each."""
    found = {path.name: path.stat() for path in folder.iterdir() if not path.name.startswith(".")}
    return {name: (stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in found.items()}


@case("before/index")
def before_index(sources: Sources) -> object:
    folder, other = copied(sources), copied(sources)
    (other / "plain.tarpeg.npz").unlink()
    without_checksum(folder / "plain.tar")
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
    without_checksum(folder / "plain.tar")
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
    data = before_module(copied(sources))
    seen = seen_in(sources.fresh(), data, ckpt_path=BEFORE / "run.ckpt", max_epochs=3)
    whole = before_module(copied(sources)).train_dataloader()
    expected = [batch for _ in range(3) for batch in whole][6:]
    assert digest(seen) == digest(expected), "six steps were done when the checkpoint was saved"
    return seen


@case("before/synthetic")
def before_synthetic(sources: Sources) -> object:
    folder = shutil.copytree(BEFORE / "synthetic", sources.fresh() / "synthetic")
    known = stamps(folder)
    tarpeg.SyntheticShards(str(folder), train=3, val=2, photos={"size": 24}, workers=0)()
    assert stamps(folder) == known, "the photographs were drawn again"
    return drain(module(f"{folder}/train-*.tar", keys=True, batch_size=2))

"""Whatever a YAML file of LightningCLI gives: parsed by jsonargparse, printed, and parsed again."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, is_dataclass

import pytest
import tarpeg
import torch
import yaml
from helpers.captions import tokenize
from helpers.checkouts import ROOT
from helpers.scripts import run_file

jsonargparse = pytest.importorskip("jsonargparse", "4.51", reason="jsonargparse is in the dev extra")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]  # a third of a second per file

RANDOM = {"class_path": "tarpeg.RandomResizedCrop", "init_args": {"size": 64}}


class OwnCrop:
    """A crop of a user's, whose annotations and names of arguments are not those of ``Crop``."""

    draws = 0

    def __init__(self, size: int = 8) -> None:
        self.size = (size, size)

    def boxes(self, image_sizes, uniforms=None):
        raise NotImplementedError

    def __repr__(self):
        return f"OwnCrop({self.size})"


def parsed(**settings):
    """The data module of these settings; what ``--print_config`` prints must give the same."""
    parser = jsonargparse.ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(tarpeg.ShardDataModule, "data")
    config = parser.parse_object({"data": settings})
    printed = parser.parse_string(parser.dump(config, skip_none=False))
    first, second = (parser.instantiate_classes(c).data for c in (config, printed))
    assert shown(first) == shown(second)
    return first


def shown(data):
    """All settings of a data module, as text."""
    augment = data.augment
    parts = {name: value for name, value in vars(augment).items() if name[0] != "_"} if augment else None
    prepare = asdict(data._prepare) if is_dataclass(data._prepare) else data._prepare
    return repr((data.splits, data._config, parts, prepare))


def of(name, **arguments):
    return {"class_path": f"tarpeg.{name}", "init_args": arguments}


CROPS = [
    (RANDOM, tarpeg.RandomResizedCrop(64)),
    (
        of("RandomResizedCrop", size=[64, 48], scale=[0.2, 1], ratio=[1, 1]),
        tarpeg.RandomResizedCrop((64, 48), scale=(0.2, 1), ratio=(1, 1)),
    ),
    (of("RandomCrop", size=64), tarpeg.RandomCrop(64)),
    (of("CenterCrop", size=64, shorter=72), tarpeg.CenterCrop(64, shorter=72)),
    (of("Whole", size=[3, 4]), tarpeg.Whole((3, 4))),
    (
        of("Progressive", crop=RANDOM, sizes={0: 32, 3: [48, 40]}),
        tarpeg.Progressive(tarpeg.RandomResizedCrop(64), {0: 32, 3: [48, 40]}),
    ),
    ([RANDOM, of("CenterCrop", size=64)], [tarpeg.RandomResizedCrop(64), tarpeg.CenterCrop(64)]),
]


@pytest.mark.parametrize(("settings", "crop"), CROPS)
def test_crops(settings, crop):
    assert parsed(train={"shards": "a", "crop": settings}).splits["train"].crop == crop


def test_a_crop_of_the_users_own():
    settings = {"class_path": f"{__name__}.OwnCrop", "init_args": {"size": 5}}
    crop = parsed(val={"shards": "a", "crop": settings}).splits["val"].crop
    assert type(crop).__name__ == "OwnCrop" and crop.size == (5, 5)


def of_torchvision(name, **arguments):
    return {"class_path": f"torchvision.transforms.v2.{name}", "init_args": arguments}


@pytest.mark.parametrize("views", [0, 2])
def test_transforms(views):
    last = [of_torchvision("RandAugment"), of_torchvision("ToDtype", dtype="torch.float16", scale=True)]
    steps = [of_torchvision("RandomResizedCrop", size=8, interpolation="bicubic"), *last]
    settings = of_torchvision("Compose", transforms=steps)
    split = parsed(train={"shards": "a", "transform": [settings] * views or settings}).splits["train"]
    assert len(split.pipelines) == max(views, 1)
    for pipeline in split.pipelines:
        assert (pipeline.interpolation, pipeline.levels.dtype) == ("bicubic", torch.float16)
        assert [type(step).__name__ for step in pipeline.python] == ["RandAugment"]


SPLITS = [
    {"shards": ["a.tar", "b.tar"]},
    {"shards": "train-{000..003}.tar", "flip": 0.5, "interpolation": "nearest-exact"},
    {"interpolation": "bicubic"},
    {"interpolation": "area", "fidelity": "exact"},
    {"shuffle": "blocks"},
    {"shuffle": False},
    {"target": None},
    {"target": ["cls", "json:breed"]},
    {"subset": 0.1},
    {"subset": [0, 2, 5]},
    {"subset": "chosen.npy", "weights": "weights.npy"},
    {"weights": [1, 2.5]},
    {"views": 2},
    {"channels": 1},
    {"members": ["txt?", "json"]},
    {"streaming": True},
]


@pytest.mark.parametrize("settings", SPLITS, ids=str)
def test_splits(settings):
    settings = {"shards": "a", **settings}
    split = parsed(predict={"crop": RANDOM, **settings}).splits["predict"]
    members = settings.get("members", [])
    assert split == tarpeg.Split(crop=tarpeg.RandomResizedCrop(64), **{**settings, "members": members})


@pytest.mark.parametrize(
    ("name", "settings", "value"),
    [
        ("shuffle", of("Blocks", size=8), tarpeg.Blocks(8)),
        ("shuffle", {"size": 8}, tarpeg.Blocks(8)),
        ("streaming", of("Streaming", samples=100), tarpeg.Streaming(100)),
        ("streaming", {"samples": 100}, tarpeg.Streaming(100)),
    ],
)
def test_parts_of_a_split(name, settings, value):
    split = parsed(train={"shards": "a", "crop": RANDOM, name: settings}).splits["train"]
    assert getattr(split, name) == value
    assert parsed(train=of("Split", shards="a", crop=RANDOM, **{name: settings})).splits["train"] == split


def test_repeats():
    split = parsed(train={"shards": "a", "crop": RANDOM, "repeats": 3, "channels": 1}).splits["train"]
    assert (split.repeats, split.channels) == (3, 1)


def test_settings_of_the_data_module():
    settings = {
        "batch_size": 8,
        "global_batch_size": 16,
        "seed": 3,
        "workers": 0,
        "threads": 2,
        "prefetch": 4,
    }
    settings |= {"readahead": 2, "on_error": "raise", "max_bad": 0.5, "max_pixels": 1000, "drop_last": True}
    settings |= {"keys": True, "allow_overlap": True, "allow_other_data": True}
    split = tarpeg.Split("a", tarpeg.RandomResizedCrop(64), members=[])
    expected = tarpeg.ShardDataModule(split, **settings)
    found = parsed(train={"shards": "a", "crop": RANDOM}, **settings)
    assert shown(found) == shown(expected)
    for name in ("_drop_last", "_keys", "_has_separate_shards"):
        assert getattr(found, name) == getattr(expected, name) is True


AFFINE = {"degrees": 10, "scale": [0.9, 1.1], "translate": 0.1}
AUGMENTS = [
    ({}, {}),
    (
        {"mean": [0.5] * 3, "std": [1, 1, 1], "flip": 0.5, "space": "ycbcr", "fill": [1, 2, 3]},
        {"mean": [0.5] * 3, "std": [1, 1, 1], "flip": 0.5, "space": "ycbcr", "fill": [1.0, 2.0, 3.0]},
    ),
    ({"dtype": "float16", "memory_format": "channels_last"},) * 2,
    ({"dtype": "torch.bfloat16", "memory_format": "torch.channels_last"},) * 2,
    ({"affine": AFFINE}, {"affine": tarpeg.Affine(**AFFINE)}),
    ({"affine": of("Affine", **AFFINE)}, {"affine": tarpeg.Affine(**AFFINE)}),
    (
        {"color": of("ColorJitter", brightness=0.2, hue=[-0.1, 0.1])},
        {"color": tarpeg.ColorJitter(0.2, hue=(-0.1, 0.1))},
    ),
    ({"erase": of("Erase", area=[0.1, 0.2])}, {"erase": tarpeg.Erase(area=(0.1, 0.2))}),
    ({"mask": of("GridMask", cells=[4, 5])}, {"mask": tarpeg.GridMask(cells=(4, 5))}),
    ({"mix": of("Mix", classes=10)}, {"mix": tarpeg.Mix(10)}),
    ({"policy": of("RandAugment", magnitude=5)}, {"policy": tarpeg.RandAugment(magnitude=5)}),
    (
        {"policy": [of("ColorJitter", hue=[0, 0.1]), of("AugMix", fill=[1, 2, 3]), of("ThreeAugment")]},
        {"policy": [tarpeg.ColorJitter(hue=(0, 0.1)), tarpeg.AugMix(fill=(1, 2, 3)), tarpeg.ThreeAugment()]},
    ),
]


@pytest.mark.parametrize(("settings", "arguments"), AUGMENTS, ids=str)
def test_augment(settings, arguments):
    data = parsed(train={"shards": "a", "crop": RANDOM}, augment=of("Augment", **settings))
    expected = tarpeg.ShardDataModule(data.splits["train"], augment=tarpeg.Augment(**arguments))
    assert shown(data) == shown(expected)


def test_a_module_for_each_view():
    crop = [RANDOM, of("RandomResizedCrop", size=32)]
    modules = [of("Augment", flip=0.5), of("Augment")]
    data = parsed(train={"shards": "a", "crop": crop}, augment=modules)
    assert [type(module) for module in data.augment] == 2 * [tarpeg.Augment]
    assert [module.flip for module in data.augment] == [0.5, 0]


PHOTOS = tarpeg.Photos(96)
SYNTHETIC = of("SyntheticShards", out="o", train=32, photos={"size": 96})
PREPARES = [
    (SYNTHETIC, tarpeg.SyntheticShards("o", 32, photos=PHOTOS)),
    (
        of("SyntheticShards", out="o", train=32, photos=of("Photos", size=96)),
        tarpeg.SyntheticShards("o", 32, photos=PHOTOS),
    ),
    (of("FolderShards", root="r", out="o"), tarpeg.FolderShards("r", "o")),
    (of("CachedShards", source="r", out="o"), tarpeg.CachedShards("r", "o")),
    (
        of("CachedShards", source=["r", "s"], out="o", codec=of("Tiled"), layout={"shuffle": True}),
        tarpeg.CachedShards(["r", "s"], "o", tarpeg.Tiled(), tarpeg.Layout(shuffle=True)),
    ),
    (
        of("CachedShards", source=SYNTHETIC, out="o", codec=of("Resized", shorter=256)),
        tarpeg.CachedShards(tarpeg.SyntheticShards("o", 32, photos=PHOTOS), "o", tarpeg.Resized(256)),
    ),
    (
        of("CachedShards", source=of("Folder", root="r", split="train"), out="o", codec=of("Raw")),
        tarpeg.CachedShards(tarpeg.Folder("r", split="train"), "o", tarpeg.Raw()),
    ),
]


@pytest.mark.parametrize(("settings", "prepare"), PREPARES, ids=str)
def test_prepare(settings, prepare):
    assert parsed(train={"shards": "a", "crop": RANDOM}, prepare=settings)._prepare == prepare


RUN = """
import runpy
sys.argv = {arguments!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_config_that_the_example_prints_trains(tmp_path, monkeypatch):
    def run(*arguments):
        script = str(ROOT / "examples" / "lightning_cli.py")
        done = run_file(tmp_path / "run.py", RUN.format(arguments=[script, "fit", *arguments]))
        return done.stdout + done.stderr

    monkeypatch.chdir(tmp_path)
    config = f"--config={ROOT / 'examples' / 'lightning_cli.yaml'}"
    changes = ("--data.batch_size=16", "--data.train.crop.init_args.size=48", "--data.train.flip=0.25")
    cpu = ("--trainer.accelerator=cpu", "--trainer.devices=1", "--data.workers=0")
    printed = run(config, *changes, *cpu, "--print_config")
    data = yaml.safe_load(printed)["data"]
    assert data["train"]["crop"]["init_args"]["size"] == 48
    assert (data["batch_size"], data["train"]["flip"]) == (16, 0.25)
    (tmp_path / "printed.yaml").write_text(printed)
    result = r"^(\d+) steps, \{'accuracy': tensor\((0\.\d+|0\.|1\.)\)\}$"
    assert re.search(result, run("--config=printed.yaml"), re.M)[1] == "16"
    (tmp_path / "photos" / "classes.json").write_text(json.dumps({f"class {n}": n for n in range(10)}))
    found = run("--config=printed.yaml", "--model.num_classes=3")
    assert "ShardError: labels 0..9 need" in found and "Traceback" not in found


def test_captions():
    settings = {"member": "txt", "choose": "first", "tokenizer": "helpers.captions.tokenize"}
    text = {"class_path": "tarpeg.Text", "init_args": settings}
    crop = {"class_path": "tarpeg.RandomCrop", "init_args": {"size": 64}}
    found = parsed(train={"shards": "a", "crop": crop, "members": text}).splits["train"].members
    assert found == tarpeg.Text("txt", choose="first", tokenizer=tokenize)

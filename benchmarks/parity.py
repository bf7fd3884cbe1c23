"""The parity suite: one network, trained with torchvision's pipeline and with ours, on parts of photographs.

Each photograph is cut into a grid of cells, and a class is a photograph: the network learns to recognise it
by two thirds of its cells and is measured on the others. Both pipelines read JPEGs of the same cells, and
networks of one seed begin with the same weights. Each pipeline draws its own order, crops and flips.
"""

from __future__ import annotations

import importlib
import importlib.util
import statistics
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tarpeg.augment.module import Augment
from tarpeg.datasets.writer import make_shards
from tarpeg.errors import DecodeError, check_integer
from tarpeg.loader.split import Split
from tarpeg.sampling.crops import CenterCrop, RandomResizedCrop
from tarpeg.shards.folder import Folder
from tarpeg.shards.pillow import as_tensor, open_rgb
from torch import nn
from torch.utils.data import DataLoader

from .decode_peers import BATCH, MEAN, STD, decode_jpeg
from .loader_data import Advance, LoaderSettings, Show, check_names
from .photos import FolderPhotos
from .report import Report, Row

_SIDE, _SHORTER, _SCALE = 64, 72, (0.25, 1.0)  # of the network's input in pixels; shares of a cell's area
_CELL, _LEAST, _ACROSS = 192, 64, 5  # largest and least side of a cell in pixels; cells per shorter side
_TOO_SMALL = f"below {_LEAST * _ACROSS} pixels on a side, or damaged"
_WIDTHS = (24, 48, 96, 192)
_RATE, _DECAY = 3e-3, 0.05

# Photographs in the wheels of two packages that the extra "bench" installs.
_PACKAGED = {
    "skimage": (
        "data",
        *("astronaut", "brick", "camera", "chelsea", "coffee", "coins", "grass", "gravel"),
        *("hubble_deep_field", "ihc", "moon", "motorcycle_left", "retina", "rocket"),
    ),
    "sklearn": ("datasets/images", "china", "flower"),
}

Batches = Iterable[Sequence[Any]]
"""Batches of images, float32 [B, 3, 64, 64], and labels."""


@dataclass(frozen=True)
class ParitySettings:
    """Settings of the parity suite. ``seeds``: networks per pipeline. ``epochs``: of each network."""

    seeds: int = 3
    epochs: int = 20

    def __post_init__(self) -> None:
        check_integer("parity.seeds", self.seeds, 2)
        check_integer("parity.epochs", self.epochs, 1)

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> ParitySettings:
        """Return settings from a mapping; ValueError for an unknown key."""
        check_names("parity", cls, value)
        return cls(**value)


@dataclass(frozen=True)
class Pipeline:
    """A way to load the cells. ``train(seed)`` returns a function that returns the next epoch's batches."""

    name: str
    train: Callable[[int], Callable[[], Batches]]
    val: Callable[[], Batches]


def measure_parity(
    report: Report,
    folder: str | None,
    loaders: LoaderSettings,
    settings: ParitySettings,
    advance: Advance,
    show: Show,
) -> Report:
    """Train networks with each pipeline, and measure each of them with both validation pipelines."""
    paths = photographs(folder)
    root = Path(loaders.data).absolute() / f"parity-{zlib.crc32(repr([*map(str, paths)]).encode()):08x}"
    counts = write_cells(paths, root, advance)
    pipelines = [_torchvision(root, loaders.workers), _ours(root, loaders.workers)]
    runs = [(seed, pipe) for seed in range(settings.seeds) for pipe in pipelines]
    scores: dict[tuple[str, str], list[float]] = {}
    for done, (seed, pipe) in enumerate(runs):
        net = network(counts["classes"], seed)
        what = f"training with {pipe.name}, seed {seed}"
        train(net, pipe.train(seed), settings.epochs, partial(_advance, advance, what, done, len(runs)))
        for other in pipelines:
            scores.setdefault((pipe.name, other.name), []).append(score := accuracy(net, other.val()))
            show(f"trained with {pipe.name}, seed {seed}, measured with {other.name}: {score:.1%}")
    rows = [
        Row(
            f"measured with {other.name}",
            f"trained with {pipe.name}",
            1.0,
            accuracy=statistics.mean(found := scores[pipe.name, other.name]),
            spread=statistics.stdev(found),
            accuracies=tuple(found),
        )
        for other in pipelines
        for pipe in pipelines
    ]
    own = [scores[pipe.name, pipe.name] for pipe in pipelines]
    gaps = [ours - theirs for theirs, ours in zip(*own, strict=True)]
    gap, error = statistics.mean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
    unused = len(paths) - counts["classes"]
    return replace(
        report,
        images=len(paths),
        rounds=settings.seeds,
        rows=tuple(rows),
        work=f"which of {counts['classes']} photographs a crop is part of: {counts['train']} cells to train, "
        f"{counts['val']} others to measure, {settings.epochs} epochs, {settings.seeds} seeds",
        comparison="accuracy: mean and standard deviation over seeds; the same initial weights per seed",
        figures=(
            f"ours alone minus torchvision's alone: {100 * gap:+.1f} points, standard error "
            f"{100 * error:.1f}; one cell is {100 / counts['val']:.2f} points",
        ),
        missing=(f"left out: {unused} of {len(paths)} photographs, which are {_TOO_SMALL}",) * bool(unused),
    )


def photographs(folder: str | None) -> list[Path]:
    """Paths of the photographs in ``folder``; None: those in the packages scikit-image and scikit-learn."""
    if folder is not None:
        return list(FolderPhotos(folder=folder).files)
    found = []
    for package, (place, *names) in _PACKAGED.items():
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            paths = sorted((Path(root) / place).glob("*.*"))
            found += [path for path in paths if path.stem in names and path.suffix in (".jpg", ".png")]
    if not found:
        raise ValueError(
            "suite=parity needs photographs: pip install scikit-image scikit-learn, or give images=DIR"
        )
    return found


def write_cells(paths: Sequence[Path], root: Path, advance: Advance) -> dict[str, int]:
    """Write cells of each photograph to ``root/{train,val}/NUMBER/``, and shards of them to ``root/shards``.

    Return the numbers of classes and of the cells of both splits. Photographs that are too small or cannot be
    decoded are left out. Cells that an earlier run wrote are used again.
    """
    if not (root / "shards").exists():
        for number, path in enumerate(paths):
            for cell, (place, image) in enumerate(_cut(path)):
                target = root / ("train", "val")[place % 3 == 0] / f"{number:04d}" / f"{cell:04d}.jpg"
                target.parent.mkdir(parents=True, exist_ok=True)
                image.save(target, quality=90)
            advance("cutting photographs", (number + 1) / len(paths))
        classes = len([*(root / "train").glob("*")])
        if classes < 2:
            raise ValueError(
                f"images: {classes} of {len(paths)} photographs have sides of at least "
                f"{_LEAST * _ACROSS} pixels; give at least two"
            )
        for split in ("train", "val"):
            make_shards(root / "making", Folder(str(root), split=split), prefix=split, workers=0)
        (root / "making").rename(root / "shards")
    counts = {split: sum(1 for _ in (root / split).rglob("*.jpg")) for split in ("train", "val")}
    return {"classes": len([*(root / "train").glob("*")]), **counts}


def _cut(path: Path) -> Iterator[tuple[int, Image.Image]]:
    """Cells of a photograph, and the number of the diagonal that each is on."""
    try:
        image = open_rgb(path.read_bytes())
    except DecodeError:
        return
    side = min(_CELL, min(image.size) // _ACROSS)
    # A large photograph is reduced, so that it has not many more cells than the others.
    image.thumbnail((3 * _ACROSS * side, 2 * _ACROSS * side))
    if side >= _LEAST:
        for row in range(image.height // side):
            for column in range(image.width // side):
                top, left = row * side, column * side
                yield row + column, image.crop((left, top, left + side, top + side))


def network(classes: int, seed: int) -> nn.Module:
    """Make a small convolutional network, with the initial weights of the seed."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for before, width in zip((3, *_WIDTHS), _WIDTHS, strict=False):
        layers += [nn.Conv2d(before, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1], classes))


def _advance(advance: Advance, what: str, done: int, runs: int, share: float) -> None:
    advance(what, (done + share) / runs)


def train(
    net: nn.Module, epoch: Callable[[], Batches], epochs: int, advance: Callable[[float], None]
) -> None:
    """Train with AdamW, the learning rate falling with a cosine per epoch."""
    optimizer = torch.optim.AdamW(net.parameters(), _RATE, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    net.train()
    for number in range(epochs):
        for images, labels in epoch():
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        schedule.step()
        advance((number + 1) / epochs)


@torch.no_grad()
def accuracy(net: nn.Module, batches: Batches) -> float:
    """Fraction of the images whose class has the highest score."""
    net.eval()
    right = [net(images).argmax(1) == labels for images, labels in batches]
    return float(torch.cat(right).float().mean())


def _torchvision(root: Path, workers: int) -> Pipeline:
    """ImageFolder, torchvision v2 and DataLoader."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    datasets = importlib.import_module("torchvision.datasets")
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(MEAN), list(STD))]
    crops = {
        "train": [v2.RandomResizedCrop(_SIDE, _SCALE, antialias=True), v2.RandomHorizontalFlip()],
        "val": [v2.Resize(_SHORTER, antialias=True), v2.CenterCrop(_SIDE)],
    }

    def loader(split: str, **options: Any) -> DataLoader[Any]:
        transform = v2.Compose([as_tensor, decode_jpeg, *crops[split], *last])
        dataset = datasets.ImageFolder(root / split, transform, loader=read_bytes)
        context = "fork" if workers else None
        return DataLoader(dataset, BATCH, num_workers=workers, multiprocessing_context=context, **options)

    def train_loader(seed: int) -> Callable[[], Batches]:
        made = loader("train", shuffle=True, generator=torch.Generator().manual_seed(seed))
        return lambda: made

    return Pipeline("torchvision v2", train_loader, lambda: loader("val"))


def _ours(root: Path, workers: int) -> Pipeline:
    from tarpeg.datamodule import ShardDataModule  # here, because it imports Lightning

    def data(seed: int) -> ShardDataModule:
        crop = RandomResizedCrop(_SIDE, _SCALE)
        splits = (
            Split(str(root / "shards" / "train-*.tar"), crop, flip=0.5),
            Split(str(root / "shards" / "val-*.tar"), CenterCrop(_SIDE, shorter=_SHORTER)),
        )
        return ShardDataModule(*splits, batch_size=BATCH, seed=seed, workers=workers, augment=Augment())

    def train_loader(seed: int) -> Callable[[], Batches]:
        made = data(seed)
        loader = made.train_dataloader()
        return lambda: made.augmented(loader)

    def val_loader() -> Batches:
        made = data(0)
        loader: Any = made.val_dataloader()
        yield from made.augmented(loader)
        made.teardown()

    return Pipeline("tarpeg", train_loader, val_loader)


def read_bytes(path: str) -> bytes:
    """Content of a file, for ImageFolder, whose workers pickle the function."""
    return Path(path).read_bytes()

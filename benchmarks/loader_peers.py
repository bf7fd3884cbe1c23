"""Other loaders in the loader suite, each set up as its own documentation recommends.

Each makes endless batches: RandomResizedCrop(224) to uint8, or the same flipped and normalised to float32.
A peer imports its package inside its function: a peer that is not installed is left out of the table.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tarpeg.sampling.crops import RandomResizedCrop
from tarpeg.shards.pillow import as_tensor
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader

from .decode_peers import BATCH, MEAN, SIZE, STD, dali_normalised, decode_jpeg
from .loader_data import REPEATS, LoaderData

Batches = Iterator[Any]
_SHUFFLED = 1000  # samples in a shuffle buffer, where there is one


def _torchvision(group: str) -> Any:
    """Make torchvision's transform of the bytes of a JPEG to [3, 224, 224]; it pickles, for a worker."""
    v2 = importlib.import_module("torchvision.transforms.v2")
    steps = [as_tensor, decode_jpeg, v2.RandomResizedCrop(SIZE, antialias=True)]
    if group == "float32":
        steps += [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)]
        steps += [v2.Normalize(list(MEAN), list(STD))]
    return v2.Compose(steps)


# Some peers change the default start method at import; classes made in functions cannot be pickled for it.
_FORKED = {"multiprocessing_context": "fork"}


def for_ever(loader: Any) -> Batches:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


def _loaded(dataset: Any, workers: int, **options: Any) -> Batches:
    settings = {"num_workers": workers, "persistent_workers": True, **_FORKED, **options}
    return for_ever(DataLoader(dataset, **settings))


def _webdataset(data: LoaderData, group: str, workers: int) -> Batches:
    return from_webdataset(data, workers, _torchvision(group))


def from_webdataset(
    data: LoaderData, workers: int, transform: Callable[[bytes], Tensor], **batching: Any
) -> Batches:
    """Endless batches of ``transform`` of each JPEG's bytes; ``batching``: options of ``batched``."""
    wds = importlib.import_module("webdataset")
    urls = [str(path) for path in data.shards("ordinary")]
    pipeline = wds.WebDataset(urls, resampled=True, shardshuffle=False).shuffle(_SHUFFLED)
    pipeline = pipeline.to_tuple("jpg", "cls").map_tuple(transform, int).batched(BATCH, **batching)
    return _loaded(pipeline, workers, batch_size=None)


def loose_files(data: LoaderData) -> Path:
    """Return the folder of the photographs as LABEL/NUMBER.jpg."""

    def make(folder: Path) -> None:
        for number, (jpeg, label) in enumerate(data.samples()):
            path = folder / str(label) / f"{number:08d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg)

    return data.cached("files", make)


def _files(data: LoaderData, group: str, workers: int) -> Batches:
    datasets = importlib.import_module("torchvision.datasets")
    folder = datasets.ImageFolder(loose_files(data), _torchvision(group), loader=_read_bytes)
    epoch: Any = ConcatDataset([folder] * REPEATS)
    return _loaded(epoch, workers, batch_size=BATCH, shuffle=True, drop_last=True)


def _read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


def _transformed(dataset: Any, group: str) -> Any:
    """Subclass of a dataset of {"image": jpeg, "label": label} that returns transformed samples."""
    transform = _torchvision(group)

    class Samples(dataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return transform(sample["image"]), sample["label"]

    return Samples


def _litdata(data: LoaderData, group: str, workers: int) -> Batches:
    litdata = importlib.import_module("litdata")

    def make(folder: Path) -> None:
        cache = importlib.import_module("litdata.streaming.cache").Cache(str(folder), chunk_bytes="64MB")
        for number, (jpeg, label) in enumerate(list(data.samples()) * REPEATS):
            cache[number] = {"image": jpeg, "label": label}
        cache.done()
        cache.merge()

    samples = _transformed(litdata.StreamingDataset, group)
    dataset = samples(str(data.cached("litdata", make)), shuffle=True, drop_last=True)
    return for_ever(litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=workers, **_FORKED))


def _streaming(data: LoaderData, group: str, workers: int) -> Batches:
    streaming = importlib.import_module("streaming")

    def make(folder: Path) -> None:
        with streaming.MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as writer:
            for jpeg, label in data.samples():
                writer.write({"image": jpeg, "label": label})

    samples = _transformed(streaming.StreamingDataset, group)
    folder = str(data.cached("streaming", make))
    dataset = samples(local=folder, shuffle=True, batch_size=BATCH, epoch_size=REPEATS * data.images)
    return _loaded(dataset, workers, batch_size=BATCH, drop_last=True)


def _spdl(data: LoaderData, group: str, workers: int) -> Batches:
    io, pipeline = importlib.import_module("spdl.io"), importlib.import_module("spdl.pipeline")
    crop, generator = RandomResizedCrop(SIZE), np.random.default_rng(0)
    files = sorted(loose_files(data).glob("*/*.jpg"))
    io.demux_image(str(files[0]))  # raises without FFmpeg's libraries; the pipeline would only log that
    scale = 1 / (255 * torch.tensor(STD).reshape(3, 1, 1))
    shift = -torch.tensor(MEAN).reshape(3, 1, 1) / torch.tensor(STD).reshape(3, 1, 1)

    def endless() -> Iterator[tuple[str, Any, bool]]:
        while True:
            for number in generator.permutation(len(files)).tolist():
                yield str(files[number]), generator.random((1, crop.draws)), generator.random() < 0.5

    def decode(sample: tuple[str, Any, bool]) -> Any:
        path, draws, flip = sample
        packets = io.demux_image(path)
        top, left, height, width = crop.boxes([[packets.height, packets.width]], draws)[0].tolist()
        steps = [f"crop={width}:{height}:{left}:{top}", f"scale={SIZE}:{SIZE}:flags=bilinear"]
        steps += ["hflip"] * (flip and group == "float32") + ["format=pix_fmts=rgb24"]
        return io.decode_packets(packets, filter_desc=",".join(steps))

    def batch(frames: Sequence[Any]) -> tuple[Tensor]:
        images = io.to_torch(io.convert_frames(list(frames))).permute(0, 3, 1, 2)
        return (images if group == "uint8" else torch.addcmul(shift, images.float(), scale),)

    builder = pipeline.PipelineBuilder().add_source(endless()).pipe(decode, concurrency=workers)
    builder = builder.aggregate(BATCH, drop_last=True).pipe(batch).add_sink(2)
    running = builder.build(num_threads=workers)

    def batches() -> Batches:
        with running.auto_stop():
            yield from running

    return batches()


def _dali(data: LoaderData, group: str, workers: int) -> Batches:
    def graph(fn: Any, types: Any, jpegs: Any) -> Any:
        images = fn.decoders.image_random_crop(
            jpegs, random_aspect_ratio=[3 / 4, 4 / 3], random_area=[0.08, 1.0], output_type=types.RGB
        )
        images = fn.resize(images, size=[SIZE, SIZE], antialias=True)
        if group == "float32":
            images = dali_normalised(fn, types, images, fn.random.coin_flip())
        return images

    return from_dali(data, workers, graph)


def from_dali(data: LoaderData, workers: int, graph: Callable[[Any, Any, Any], Any]) -> Batches:
    """Endless batches of ``graph(fn, types, jpegs)``, for JPEGs that DALI reads from the shards."""
    dali, fn = importlib.import_module("nvidia.dali"), importlib.import_module("nvidia.dali.fn")
    types, plugin = (importlib.import_module(f"nvidia.dali.{name}") for name in ("types", "plugin.pytorch"))
    paths = data.shards("ordinary")

    def make(folder: Path) -> None:
        folder.mkdir()
        for path in paths:
            index = importlib.import_module("wds2idx")
            with index.IndexCreator(str(path), str(folder / f"{path.stem}.idx"), verbose=False) as creator:
                creator.create_index()

    folder = data.cached("dali", make)
    indexes = [str(folder / f"{path.stem}.idx") for path in paths]
    pipeline = dali.Pipeline(batch_size=BATCH, num_threads=workers, device_id=None, prefetch_queue_depth=2)
    with pipeline:
        jpegs, labels = fn.readers.webdataset(
            paths=[str(path) for path in paths],
            index_paths=indexes,
            ext=["jpg", "cls"],
            random_shuffle=True,
            initial_fill=_SHUFFLED,
            missing_component_behavior="error",
        )
        pipeline.set_outputs(graph(fn, types, jpegs), fn.pad(labels))
    iterator = plugin.DALIGenericIterator([pipeline], ["image", "label"])
    return ((made[0]["image"], made[0]["label"]) for made in iterator)


def _ffcv(kind: str, data: LoaderData, group: str, workers: int) -> Batches:
    fields, decoders = (importlib.import_module(f"ffcv.fields{name}") for name in ("", ".decoders"))
    ffcv, transforms = importlib.import_module("ffcv.loader"), importlib.import_module("ffcv.transforms")

    def make(path: Path) -> None:
        written = {"image": fields.RGBImageField(write_mode=kind), "label": fields.IntField()}
        writer = importlib.import_module("ffcv.writer").DatasetWriter(str(path), written, num_workers=1)
        writer.from_indexed_dataset(_Pictures(data))

    images = [decoders.RandomResizedCropRGBImageDecoder((SIZE, SIZE))]
    if group == "float32":
        mean, std = 255 * np.array(MEAN), 255 * np.array(STD)
        images += [transforms.RandomHorizontalFlip(), transforms.NormalizeImage(mean, std, np.float32)]
    images += [transforms.ToTensor(), transforms.ToTorchImage()]
    labels = [decoders.IntDecoder(), transforms.ToTensor(), transforms.Squeeze()]
    loader = ffcv.Loader(
        str(data.cached(f"ffcv-{kind}.beton", make)),
        batch_size=BATCH,
        num_workers=workers,
        order=ffcv.OrderOption.RANDOM,
        os_cache=True,
        indices=np.arange(REPEATS * data.images) % data.images,
        pipelines={"image": images, "label": labels},
    )
    return for_ever(loader)


class _Pictures:
    def __init__(self, data: LoaderData) -> None:
        self._samples = list(data.samples())

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        jpeg, label = self._samples[number]
        image = decode_jpeg(as_tensor(jpeg))
        return image.permute(1, 2, 0).contiguous().numpy(), label


_FFCV_PACKAGES = (
    "numba assertpy fastargs pytorch_pfn_extras tqdm psutil terminaltables, apt-get install "
    "libturbojpeg0-dev libopencv-dev pkg-config, pip install --no-deps ffcv==1.0.2"
)


class Peer(NamedTuple):
    """Another library's loader or pipeline, made by ``make``.

    packages: what pip installs for it. module: imported to find out whether it is installed.
    prepare: called with the folder of the photographs before ``make``; it may raise RuntimeError.
    """

    packages: str
    module: str
    make: Callable[..., Any]
    prepare: Callable[[Path], object] | None = None


PEERS = {
    "webdataset + torchvision": Peer("webdataset torchvision", "webdataset", _webdataset),
    "files + DataLoader + torchvision": Peer("torchvision", "torchvision", _files),
    "LitData + torchvision": Peer("litdata", "litdata", _litdata),
    "Streaming + torchvision": Peer("mosaicml-streaming", "streaming", _streaming),
    "SPDL": Peer("spdl spdl-io", "spdl.io", _spdl),
    "DALI, antialiased": Peer("nvidia-dali-cuda130", "nvidia.dali", _dali),
    "FFCV, JPEG": Peer(_FFCV_PACKAGES, "ffcv", partial(_ffcv, "jpg")),
    "FFCV, raw pixels": Peer(_FFCV_PACKAGES, "ffcv", partial(_ffcv, "raw")),
}
"""Peers of the loader suite, made with (data, group, workers); the first is the reference."""


@contextlib.contextmanager
def as_value_error() -> Iterator[None]:
    """Re-raise the errors of a peer that does not work here as ValueError: the suite goes on without it."""
    try:
        yield
    except (ImportError, RuntimeError, AttributeError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from error

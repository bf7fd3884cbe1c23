"""Measure what docs/tuning.md says of the codecs: bytes, time to build, time to decode a training crop.

Synthetic photographs, one thread, processor time, rounds in turns: python docs/measure_codecs.py [IMAGES]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datamodules"))

from tarpeg import Packed, RandomResizedCrop, Raw, Resized, Tiled, decode_batch, image_sizes
from tarpeg.datasets.synthetic import Photos, photograph

from benchmarks.report import machine_name

CODECS = {
    "none (ordinary JPEGs)": None,
    "tiled": Tiled(),
    "tiled codec.tile=16": Tiled(16),
    "tiled codec.tile=64": Tiled(64),
    "packed": Packed(),
    "packed codec.shorter=512": Packed(512),
    "resized codec.shorter=512": Resized(512),
    "resized codec.shorter=256": Resized(256),
    "raw codec.shorter=512": Raw(512),
    "raw codec.shorter=256": Raw(256),
    "raw": Raw(),
}
SETS = {"imagenet": 1.0, "big": 0.2}  # of so many of the photographs that were asked for
CROP, ROUNDS = RandomResizedCrop(224), 7


def tensor(data: bytes) -> torch.Tensor:
    """uint8 [n]."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def measured(size: str, count: int) -> dict[str, tuple[float, float, float]]:
    """For each codec: bytes for each byte before, milliseconds to encode, microseconds to decode an image."""
    jpegs = [photograph(Photos(size=size), index).jpeg for index in range(count)]
    draws = np.random.default_rng(0).random((count, CROP.draws))
    files, spent = {}, {}
    for name, codec in CODECS.items():
        started = time.process_time()
        files[name] = [tensor(codec.encode(jpeg, "jpg").data if codec else jpeg) for jpeg in jpegs]
        spent[name] = (time.process_time() - started) * 1e3 / count if codec else 0.0
    boxes = {name: torch.from_numpy(CROP.boxes(image_sizes(of).numpy(), draws)) for name, of in files.items()}
    times: dict[str, list[float]] = {name: [] for name in files}
    out = torch.empty(count, 3, 224, 224, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    for _ in range(ROUNDS):
        for name, of in files.items():
            started = time.process_time()
            decode_batch(of, boxes[name], 224, out=out)
            times[name].append((time.process_time() - started) * 1e6 / count)
    before = sum(map(len, jpegs))
    return {
        name: (sum(map(len, of)) / before, spent[name], statistics.median(times[name]))
        for name, of in files.items()
    }


def main() -> None:
    """Measure and print a table."""
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    found = {size: measured(size, max(1, int(count * share))) for size, share in SETS.items()}
    table = Table(title=f"RandomResizedCrop(224), {machine_name()}, {time.strftime('%Y-%m-%d')}")
    for head in ("codec", *(f"{size}: {what}" for size in SETS for what in ("bytes", "ms to build", "us"))):
        table.add_column(head, no_wrap=True)
    for name in CODECS:
        cells = [f"{n:.3f} {ms:.1f} {us:.0f}".split() for n, ms, us in (found[size][name] for size in SETS)]
        table.add_row(name, *(cell for row in cells for cell in row))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()

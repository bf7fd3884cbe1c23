"""Script that wrote the fixtures in tests/repo/golden. It was run once, on commit 4745c1f.

Encoders change between versions, so the pictures are files and are not drawn by the tests. ``before/`` holds
what tarpeg itself wrote at that commit: an index, a cache, synthetic shards, states of loaders, a checkpoint.
Do not run it again: ``before/`` would then no longer come from an earlier version.

    PYTHONPATH=datamodules:tests python tests/repo/make_golden.py
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from pathlib import Path

import golden_cases
import golden_files as golden
import lightning
import numpy as np
import pictures
import tarpeg
import torch
from PIL import Image

ROOT = Path(__file__).parent / "golden"


def scene(height: int, width: int, seed: int) -> Image.Image:
    """A smooth picture with an edge, which compresses well at a large size."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 40, width // 40, 3), dtype=np.uint8))
    image = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).copy()
    image[height // 2 :, width // 3 :] = 255 - image[height // 2 :, width // 3 :]
    return Image.fromarray(image)


def saved(image: Image.Image, kind: str, **options) -> bytes:
    """The bytes of a picture in one of Pillow's formats."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def write_pictures() -> None:
    """Write images/jpeg, images/other and broken."""
    files = {}
    for number, kind in enumerate(pictures.KINDS):
        files[f"jpeg/{kind}.jpg"] = pictures.jpeg(kind, 61 + number, 90 - 2 * number, seed=number)
    for orientation in range(2, 9):
        image = Image.fromarray(pictures.pixels(40, 57, seed=orientation))
        files[f"jpeg/exif{orientation}.jpg"] = pictures.encoded(image, orientation=orientation)
    large = scene(360, 520, 1)
    files["jpeg/large.jpg"] = pictures.encoded(large, quality=85)
    files["jpeg/large_444.jpg"] = pictures.encoded(scene(330, 410, 2), quality=85, subsampling="4:4:4")
    files["jpeg/large_gray.jpg"] = pictures.encoded(large.convert("L"), quality=85)
    files["jpeg/large_progressive.jpg"] = pictures.encoded(large, quality=80, progressive=True)
    small = Image.fromarray(pictures.pixels(44, 60, seed=9))
    files["other/bmp.bmp"] = saved(small, "BMP")
    files["other/gif.gif"] = saved(small.convert("P"), "GIF")
    files["other/png.png"] = saved(small, "PNG")
    files["other/png_alpha.png"] = saved(small.convert("RGBA"), "PNG")
    files["other/ppm.ppm"] = saved(small, "PPM")
    files["other/tiff.tiff"] = saved(small, "TIFF", compression="tiff_lzw")
    files["other/webp.webp"] = saved(small, "WEBP", quality=80)
    whole = files["jpeg/420.jpg"]
    broken = {"empty.jpg": b"", "garbage.jpg": bytes(range(256)), "truncated.jpg": whole[: len(whole) // 2]}
    broken["flipped.jpg"] = whole[:900] + bytes(byte ^ 0x5A for byte in whole[900:960]) + whole[960:]
    broken["truncated.png"] = files["other/png.png"][:2000]
    for folder, group in (("images", files), ("broken", broken)):
        for name, data in group.items():
            path = ROOT / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


class Saving(lightning.Callback):
    """Saves a checkpoint at step 6, in the middle of the second epoch."""

    def on_train_batch_end(self, trainer, *_) -> None:
        if trainer.global_step == 6:
            trainer.save_checkpoint(ROOT / "before" / "run.ckpt")


def write_before(folder: Path) -> None:
    """Write before: files that tarpeg made."""
    target = ROOT / "before"
    target.mkdir(parents=True)
    names = ["jpeg/420.jpg", "jpeg/gray.jpg", "jpeg/444.jpg", "jpeg/exif6.jpg", "jpeg/progressive.jpg"]
    names += ["jpeg/cmyk.jpg", "other/png.png", "jpeg/exif3.jpg"]
    plain = golden_cases.write_tar(
        folder / "plain.tar", [golden_cases.sample(n, name) for n, name in enumerate(names)]
    )
    states = {}
    for name, options in golden.STATES.items():
        data = golden.before_module(folder, **options)
        loader = data.train_dataloader()
        list(loader)
        for _, _ in zip(range(2), loader, strict=False):
            pass
        states[name] = loader.state_dict()
        data.teardown()
    (target / "states.json").write_text(json.dumps(states, indent=2) + "\n")
    shutil.copy(plain, target / "plain.tar")
    shutil.copy(folder / "plain.tarpeg.npz", target / "plain.index.npz")  # .gitignore excludes its own name
    tarpeg.build_cache(plain, target / "cache", tarpeg.Tiled(quality=None), 0)
    for path in (target / "cache").glob(".*"):
        path.unlink()
    golden.SYNTHETIC(target / "synthetic")()
    (target / "synthetic" / ".lock").unlink(missing_ok=True)
    torch.manual_seed(0)
    data = golden.before_module(folder, keys=True)
    golden.trainer(folder, max_steps=6, callbacks=[Saving()]).fit(golden.Net(), datamodule=data)


if __name__ == "__main__":
    assert not ROOT.exists()
    write_pictures()
    with tempfile.TemporaryDirectory() as temporary:
        write_before(Path(temporary))

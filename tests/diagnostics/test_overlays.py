"""Boxes, masks and keypoints on the contact sheet."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tarpeg
import torch
from PIL import Image
from tarpeg.diagnostics import preview
from tarpeg.diagnostics.overlays import _COLOURS, with_targets
from torchvision.transforms import v2


def rgb(colour):
    return tuple(bytes.fromhex(colour[1:]))


def is_colour(picture, label):
    return (np.asarray(picture) == rgb(_COLOURS[label])).all(-1)


def test_boxes_points_and_masks_are_where_they_belong():
    gray = Image.new("RGB", (40, 20), "gray")
    boxes = torch.tensor([[20.0, 10.0, 60.0, 30.0]])
    shown = with_targets(gray, {"boxes": boxes, "labels": torch.tensor([2])}, (40, 80))
    rows, columns = np.nonzero(is_colour(shown, 2))
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (5, 14, 10, 29), "half of the size"
    points = torch.tensor([[[20.0, 10.0, 2.0], [0.0, 0.0, 0.0]]])
    shown = np.asarray(with_targets(gray, {"keypoints": points}, (20, 40)))
    assert (shown[10, 20] == 255).all() and (shown[0, 0] == 128).all(), "labelled points only"
    mask = torch.zeros(20, 40, dtype=torch.uint8)
    mask[5:10, 8:16], mask[15:] = 3, 255
    for found in (mask, {"mask": mask}, {"masks": (mask == 3)[None].byte(), "labels": torch.tensor([3])}):
        changed = (np.asarray(with_targets(gray, found, (20, 40))) != 128).any(-1)
        assert (changed == (mask.numpy() == 3)).all()
    other = {"labels": torch.tensor([1]), "own": object(), "boxes": None}
    assert with_targets(gray, other, (20, 40)) == gray


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    tarpeg.make_shards(folder, tarpeg.Scenes(size=96, objects=(2, 4)), 6, workers=0)
    return folder


def test_the_sheet_shows_targets_before_and_after(scenes, tmp_path):
    boxes = tarpeg.Boxes("json:objects")
    points = tarpeg.Keypoints("json:objects", flip_pairs=[(1, 2)], count=3)
    augment = tarpeg.Augment(affine=tarpeg.Affine(30))
    sheets = {}
    crop = tarpeg.RandomResizedCrop(64)
    for name, targets in (("none", None), ("boxes", [boxes, points]), ("masks", tarpeg.Masks("png"))):
        split = tarpeg.Split(scenes, crop, flip=0.5, target=None, targets=targets)
        data = tarpeg.ShardDataModule(split, batch_size=3, workers=0, augment=augment)
        path = tarpeg.contact_sheet(data, tmp_path / f"{name}.png", samples=5)
        sheets[name] = Image.open(path).convert("RGB")
    counts = {
        name: sum(is_colour(sheet, label).sum() for label in range(8)) for name, sheet in sheets.items()
    }
    assert counts["boxes"] > 500 > counts["none"]
    for name in ("boxes", "masks"):
        assert sheets[name].size == sheets["none"].size and sheets[name] != sheets["none"]


class Halves(tarpeg.Source):
    """Images that are white where their mask is 1."""

    def __len__(self):
        return 4

    def keys(self, ids):
        return [f"half{id}" for id in ids]

    def extensions(self, id):
        return ["jpg", "png"]

    def members(self, ids, extension):
        found = []
        for id in np.asarray(ids).tolist():
            mask = np.zeros((64, 64), np.uint8)
            mask[8 : 30 + 4 * id, 12:40] = 1
            image, stream = Image.fromarray(mask * 255 if extension == "jpg" else mask), io.BytesIO()
            image.convert("RGB" if extension == "jpg" else "L").save(stream, KINDS[extension])
            found.append(stream.getvalue())
        return found


KINDS = {"jpg": "JPEG", "png": "PNG"}


def test_targets_lie_on_the_pixels_before_and_after(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(preview, "with_targets", lambda *given: seen.append(given) or given[0])
    crop = tarpeg.RandomResizedCrop(48, scale=(0.6, 1.0))
    split = tarpeg.Split(Halves(), crop, flip=0.5, targets=tarpeg.Masks("png"))
    affine = tarpeg.Augment(affine=tarpeg.Affine(40), mean=(0, 0, 0), std=(1, 1, 1))
    data = tarpeg.ShardDataModule(split, batch_size=4, workers=0, augment=affine)
    tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=4)
    assert len(seen) == 12, "source, crop and augmented crop of each"
    for place, (picture, mask, size) in enumerate(seen):
        assert list(mask.shape) == list(size) and (mask == 1).any()
        if place % 3:
            shown = np.asarray(picture.convert("L").resize(size[::-1], Image.Resampling.BOX)) > 127
            known = mask.numpy() != 255
            assert (shown == (mask.numpy() == 1))[known].mean() > 0.96, place


def test_targets_that_python_moved(scenes, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(preview, "with_targets", lambda *given: seen.append(given) or given[0])
    steps = [v2.RandomResizedCrop(64), v2.RandomPerspective(p=1.0), v2.SanitizeBoundingBoxes()]
    split = tarpeg.Split(scenes, transform=v2.Compose(steps), targets=[tarpeg.Boxes("json:objects")])
    data = tarpeg.ShardDataModule(split, batch_size=3, workers=0, augment=tarpeg.Augment())
    tarpeg.contact_sheet(data, tmp_path / "sheet.png", samples=3)
    assert [size for _, _, size in seen] == [(96, 96), (64, 64)] * 3, "source, and what Python returned"

"""How validation prepares images: in every checkpoint, compared when it is used, and made again elsewhere."""

from __future__ import annotations

import dataclasses
import io
import json

import numpy as np
import pytest
import tarpeg
import torch
from helpers.pictures import saved
from helpers.training import Net, fitted, trainer
from PIL import Image
from tarpeg.errors import ResumeError
from tarpeg.loader.preprocessing import check_preprocessing, described, restored
from torchvision import transforms as v1
from torchvision.transforms import v2

VAL = tarpeg.CenterCrop(16, shorter=20)


class Wide(Net):
    """Keeps what a prediction gets."""

    def predict_step(self, batch, _):
        return super().predict_step(batch, _), batch.image


def module(photos, crop=VAL, augment=None, settings=None, **options):
    """Train on random crops, validate with ``crop`` and ``settings``."""
    train = tarpeg.Split(photos, tarpeg.RandomResizedCrop(16))
    val = tarpeg.Split(photos, crop, **(settings or {}))
    augment = augment or tarpeg.Augment([0.5] * 3, [0.2, 0.3, 0.4])
    options = {"batch_size": 4, "workers": 0, "allow_overlap": True, **options}
    return tarpeg.ShardDataModule(train, val, augment=augment, **options)


@pytest.fixture(scope="module")
def checkpoint(photos, tmp_path_factory):
    """A checkpoint of a project that is not ours: a Trainer, a network and a data module."""
    folder = tmp_path_factory.mktemp("checkpoint")
    run = trainer(folder)
    run.fit(Wide(), datamodule=module(photos))
    run.save_checkpoint(folder / "x.ckpt")
    return folder / "x.ckpt"


def test_a_checkpoint_says_how_images_are_prepared(checkpoint):
    state = torch.load(checkpoint, weights_only=True)["ShardDataModule"]
    assert json.loads(json.dumps(state)) == state, "plain values"
    known = tarpeg.preprocessing(checkpoint)
    assert known == tarpeg.Preprocessing(VAL, mean=[0.5] * 3, std=[0.2, 0.3, 0.4], classes=[])
    split = known.split("/elsewhere", target=None)
    assert split == tarpeg.Split("/elsewhere", VAL, target=None)
    assert tarpeg.preprocessing({"ShardDataModule": state}) == known


OTHERS = {
    "crop": (
        {"crop": tarpeg.CenterCrop(16)},
        r"crop=CenterCrop\(size=\[16, 16\], shorter=None\), .* shorter=20\)",
    ),
    "interpolation": ({"settings": {"interpolation": "bicubic"}}, "interpolation='bicubic', .*='bilinear'"),
    "fidelity": ({"settings": {"fidelity": "exact"}}, "fidelity='exact', .*='fast'"),
    "space": (
        {"augment": tarpeg.Augment([0.5] * 3, [0.2, 0.3, 0.4], space="ycbcr")},
        "space='ycbcr', .*space='rgb'",
    ),
    "mean": ({"augment": tarpeg.Augment()}, r"mean=\[0\.485, .*mean=\[0\.5, 0\.5, 0\.5\]"),
}


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
@pytest.mark.parametrize("change", OTHERS)
def test_another_setting_is_an_error_that_shows_both(photos, tmp_path, checkpoint, change, stage):
    options, text = OTHERS[change]

    def use(**more):
        data = module(photos, **options, **more)
        if stage == "predict":
            data.splits["predict"] = dataclasses.replace(data.splits["val"], target=None)
        if stage == "test":
            data.splits["test"] = data.splits.pop("val")
        return getattr(trainer(tmp_path), stage)(Wide(), datamodule=data, ckpt_path=checkpoint)

    name = {"validate": "val"}.get(stage, stage)
    with pytest.raises(ResumeError, match=rf"^{name} has {text}.*tarpeg\.preprocessing\(.*allow_other_data"):
        use()
    assert use(allow_other_data=True)


def test_the_same_setting_and_training_go_on(photos, tmp_path, checkpoint):
    trainer(tmp_path).validate(Wide(), datamodule=module(photos), ckpt_path=checkpoint, verbose=False)
    data = module(photos)
    data.splits["test"] = data.splits["val"]
    trainer(tmp_path).test(Wide(), datamodule=data, ckpt_path=checkpoint, verbose=False)
    fitted(tmp_path, module(photos, tarpeg.CenterCrop(8)), Wide(), checkpoint, max_epochs=2)


COMPOSED = v2.Compose(
    [
        v2.Resize(20, interpolation=v2.InterpolationMode.BICUBIC),
        v2.CenterCrop(16),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.25] * 3),
    ]
)


# Of PIL images, which are always antialiased.
OLDER = v1.Compose(
    [v1.Resize((16, 18), antialias=False), v1.ToTensor(), v1.Normalize(torch.zeros(3), [1.0] * 3)]
)
NEAREST = v1.Compose([v1.Resize((16, 18), v1.InterpolationMode.NEAREST), v1.ToTensor()])


@pytest.mark.parametrize(
    ("settings", "augment"),
    [
        ({"crop": VAL}, tarpeg.Augment()),
        ({"crop": tarpeg.CenterCrop((12, 16))}, tarpeg.Augment()),
        ({"crop": tarpeg.Whole((12, 16)), "interpolation": "bicubic"}, None),
        ({"crop": tarpeg.Progressive(tarpeg.Whole(8), {0: 12, 3: 16})}, None),
        ({"crop": VAL, "channels": 1}, tarpeg.Augment([0.5], [0.25])),
        ({"crop": tarpeg.LetterBox((40, 24), fill=(9, 200, 90))}, None),
        ({"crop": tarpeg.LetterBox(30, center=False), "channels": 1}, None),
        ({"transform": COMPOSED}, None),
        ({"crop": VAL}, tarpeg.Augment([0.4] * 3, [0.2] * 3, space="ycbcr")),
        ({"transform": OLDER}, None),
        ({"transform": NEAREST}, None),
    ],
    ids=str,
)
def test_what_is_stored_prepares_the_same_images(photos, settings, augment):
    split = tarpeg.Split(photos, fidelity="exact", **settings)
    stored = json.loads(json.dumps(described(split, augment)))
    known = restored(stored)
    again = described(known.split(photos), known.augment())
    check_preprocessing("val", again, stored)  # raises for another
    check_preprocessing("val", stored, again)
    assert again == stored or settings.get("transform") in (OLDER, NEAREST)  # which has ToImage and ToDtype

    def images(split, augment):
        loader = tarpeg.Loader(split, 4, training=False, augment=augment, workers=0)
        loader.sampler.set_epoch(5)  # Progressive has its last size
        return torch.cat([batch.image for batch in loader]).float()

    expected = images(split, augment)
    assert torch.equal(images(known.split(photos), known.augment()), expected)
    compose, source = known.compose(), split.open()
    whole = [
        tarpeg.decode_crop(file, 0, 0, *size)
        for file, size in zip(source.images(range(23)), source.sizes(range(23)).tolist(), strict=True)
    ]
    found = torch.stack([compose(image).float() for image in whole])
    scale = 1 if expected.max() > 5 else 255 * 0.25  # levels
    assert found.shape == expected.shape and ((found - expected).abs().mean() * scale) < 0.7


def test_a_compose_of_gray_reads_images_of_one_bit(tmp_path):
    page = Image.fromarray(np.arange(100 * 120).reshape(100, 120) % 7 < 3).convert("1")
    split = tarpeg.Split(tmp_path, tarpeg.Whole(24), channels=1, target=None, fidelity="exact")
    (tmp_path / "a.png").write_bytes(saved(page, "PNG"))
    (batch,) = tarpeg.Loader(split, 1, training=False, workers=0)
    found = restored(described(split, None)).compose()((tmp_path / "a.png").read_bytes())
    assert found.dtype == torch.uint8 and len(found.unique()) > 9
    assert (found.float() - batch.image[0].float()).abs().max() <= 1


def test_numbers_of_a_single_channel_are_those_of_all(photos):
    steps = v1.Compose([v1.Resize((16, 18)), v1.ToTensor(), v1.Normalize(0.5, 0.25)])
    split = tarpeg.Split(photos, transform=steps)
    known = restored(described(split, None))
    image = torch.full((3, 20, 20), 255, dtype=torch.uint8)
    assert torch.allclose(known.compose()(image), torch.full((3, 16, 18), 2.0))
    assert known.split(photos).transform is not None


@pytest.mark.parametrize("channels", [3, 1])
def test_a_compose_reads_files_as_loaders_do(tmp_path, channels):
    rng = np.random.default_rng(5)
    grays = np.kron(rng.integers(0, 65536, (5, 4), np.uint16), np.ones((8, 9), np.uint16))
    colours = np.kron(rng.integers(0, 256, (5, 4, 4), np.uint8), np.ones((8, 9, 1), np.uint8))
    forms = {
        "wide.png": Image.fromarray(grays),
        "wide.tif": Image.fromarray(grays),
        "gray.png": Image.fromarray((grays >> 8).astype(np.uint8)),
        "rgba.png": Image.fromarray(colours, "RGBA"),
        "cmyk.tif": Image.fromarray(colours, "CMYK"),
        "palette.gif": Image.fromarray(colours[..., :3]).quantize(9),
        "turned.webp": Image.fromarray(colours[..., :3]),
    }
    options = {"turned.webp": {"lossless": True, "orientation": 6}}
    for name, image in forms.items():
        kind = {"tif": "TIFF"}.get(name[-3:], name.partition(".")[2].upper())
        (tmp_path / name).write_bytes(saved(image, kind, **options.get(name, {})))
    split = tarpeg.Split(tmp_path, tarpeg.Whole((40, 36)), channels=channels, target=None, fidelity="exact")
    compose = restored(described(split, None)).compose()
    batch = next(iter(tarpeg.Loader(split, len(forms), training=False, keys=True, workers=0)))
    for image, key in zip(batch.image, batch.key, strict=True):
        data = (tmp_path / key).read_bytes()
        found = compose(data)
        assert found.dtype == torch.uint8 and found.shape == image.shape
        assert (found.int() - image.int()).abs().max() <= 1, key
        if "turned" not in key:
            assert torch.equal(compose(Image.open(io.BytesIO(data))), found)
        assert torch.equal(compose(torch.frombuffer(bytearray(data), dtype=torch.uint8)), found)
    for other in (str(tmp_path), tmp_path, None):
        with pytest.raises(TypeError, match="takes the bytes of a file"):
            compose(other)
    for broken in (b"", b"<html>", b"\x89PNG\r\n"):
        with pytest.raises(tarpeg.DecodeError):
            compose(broken)


def test_a_compose_takes_the_box_of_the_decoder(photos):
    split = tarpeg.Split(photos, VAL)
    source = split.open()
    files, sizes = source.images(range(23)), source.sizes(range(23))
    expected, _ = tarpeg.decode_batch(files, torch.from_numpy(VAL.boxes(sizes)), size=16, fidelity="exact")
    compose = restored(described(split, None)).compose()
    for file, size, image in zip(files, sizes.tolist(), expected, strict=True):
        found = compose(tarpeg.decode_crop(file, 0, 0, *size))
        assert (found.int() - image.int()).abs().max() <= 1


class Own:
    """A crop of one's own."""

    size, draws = (16, 16), 0

    def boxes(self, sizes, draws):
        return tarpeg.CenterCrop(16).boxes(sizes, draws)


def test_what_only_its_own_project_can_make_is_named(photos, tmp_path):
    run, own = trainer(tmp_path), module(photos, Own())
    run.fit(Net(), datamodule=own)
    run.save_checkpoint(tmp_path / "x.ckpt")
    with pytest.raises(ResumeError, match=r"crop=\S*Own\b"):
        tarpeg.preprocessing(tmp_path / "x.ckpt")
    again = module(photos, Own())
    trainer(tmp_path).validate(Net(), datamodule=again, ckpt_path=tmp_path / "x.ckpt", verbose=False)
    plain = {**described(own.splits["val"], None), "crop": None}
    wrong = ({"crop": {"name": "system"}}, {"transform": 5}, {"transform": [{"name": "system"}]})
    for stored in ({"crop": 5}, {}, *({**plain, **part} for part in wrong)):
        with pytest.raises(ResumeError, match="cannot be read"):
            restored(stored)
    with pytest.raises(ResumeError, match="validation"):
        tarpeg.preprocessing({"state_dict": {}})
    with pytest.raises(ResumeError, match=r"^classes=5 "):
        tarpeg.preprocessing({"state": {"preprocessing": {}, "classes": 5}})


@pytest.mark.parametrize("crop", [tarpeg.RandomCrop(8), [VAL, VAL]], ids=str)
def test_a_compose_is_of_one_fixed_crop(photos, crop):
    with pytest.raises(ValueError, match=r"fixed crop.*split\(\)"):
        restored(described(tarpeg.Split(photos, crop), None)).compose()
    with pytest.raises(ValueError, match=r"interpolation='lanczos' .*use split"):
        restored(described(tarpeg.Split(photos, VAL, interpolation="lanczos"), None)).compose()


def test_a_file_that_is_not_a_checkpoint_is_an_error_of_one_line(tmp_path):
    files = {"text.py": b"import os\n", "empty.ckpt": b""}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    torch.save([1, 2], tmp_path / "list.ckpt")
    torch.save({"own": Own()}, tmp_path / "own.ckpt")
    reasons = {"text.py": "not a checkpoint", "empty.ckpt": "not a checkpoint", "list.ckpt": "has a list"}
    for name, reason in {**reasons, "own.ckpt": "more than tensors.*Own"}.items():
        with pytest.raises(ResumeError, match=rf"^checkpoint='\S*{name}' .*{reason}") as caught:
            tarpeg.preprocessing(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_a_checkpoint_behind_a_url_is_refused_with_what_to_do():
    with pytest.raises(
        ResumeError, match=r"^checkpoint='s3://b/x\.ckpt' is not local: copy it, or give the dict"
    ):
        tarpeg.preprocessing("s3://b/x.ckpt")
    with pytest.raises(ResumeError, match="is not a checkpoint"):
        tarpeg.preprocessing(io.BytesIO())

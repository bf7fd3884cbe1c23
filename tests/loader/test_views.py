"""Views of several sizes: the bytes are those of loaders of single views, wherever they are made."""

from __future__ import annotations

import gc

import pytest
import tarpeg
import torch
from helpers.loaders import RUNNERS, digest, load, name_of
from helpers.pictures import picture
from helpers.small_tars import sample
from helpers.training import Net, fitted, heavy, trainer
from tarpeg import Augment, CenterCrop, Mix, Progressive, RandomResizedCrop, ShardDataModule, Split
from tarpeg.diagnostics import preview
from tarpeg.diagnostics.monitor import _length
from tarpeg.loader.buffers import BatchBuffers
from tarpeg.loader.fetch import Fetcher
from tarpeg.sampling import rng
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own

LARGE, SMALL = RandomResizedCrop(32, scale=(0.4, 1.0)), RandomResizedCrop(12, scale=(0.05, 0.4))
CROPS = [LARGE] * 2 + [SMALL] * 6
MIXED = [SMALL, LARGE, CenterCrop((12, 12)), CenterCrop((20, 28)), LARGE]  # three sizes, out of order
GROUPS = {"dino": (CROPS, [[0, 1], [2, 3, 4, 5, 6, 7]]), "mixed": (MIXED, [[0, 2], [1, 4], [3]])}


@pytest.fixture
def of_view(monkeypatch):
    """Let a loader of one view draw the numbers of view n."""
    first_draw = rng.first_draw

    def shifted(number):
        monkeypatch.setattr(rng, "first_draw", lambda seen, view=0: first_draw(seen, view + number))

    yield shifted
    monkeypatch.undo()


def stacked(singles, groups):
    """The images of loaders of single views, as a loader of all views has them."""
    return [torch.stack([singles[view] for view in group]) for group in groups]


def same(batch, images):
    assert [part.shape for part in batch.image] == [part.shape for part in images]
    return all(map(torch.equal, batch.image, images))


@pytest.mark.sweep
@pytest.mark.parametrize("runner", [*RUNNERS[:2], RUNNERS[3], RUNNERS[5], RUNNERS[6]], ids=name_of)
@pytest.mark.parametrize("name", GROUPS)
def test_the_bytes_of_loaders_of_single_views(photos, of_view, name, runner):
    crops, groups = GROUPS[name]
    loader = load(photos, crops, **runner)
    batches = [batch for _ in range(2) for batch in loader]
    loader.close()
    singles = []
    for view, crop in enumerate(crops):
        of_view(view)
        single = load(photos, crop, workers=0, threads=0)
        singles.append([batch for _ in range(2) for batch in single])
    for batch, *alone in zip(batches, *singles, strict=True):
        assert batch.key == alone[0].key and torch.equal(batch.label, alone[0].label)
        assert same(batch, stacked([each.image for each in alone], groups))
        assert all(part[0].is_contiguous(memory_format=torch.channels_last) for part in batch.image)


def test_files_are_read_once_and_decoded_in_one_call(photos, monkeypatch):
    read, decoded, fetch = [], [], tarpeg.loader.fetch
    images, decode = tarpeg.shards.mapped.Shards.images, fetch.decode_sizes

    def counted(files, *rest, **more):
        decoded.append(len(files))
        return decode(files, *rest, **more)

    monkeypatch.setattr(
        tarpeg.shards.mapped.Shards, "images", lambda self, ids: read.append(len(ids)) or images(self, ids)
    )
    monkeypatch.setattr(fetch, "decode_sizes", counted)
    list(load(photos, CROPS, workers=0, threads=0, shuffle=False, batch_size=23))
    assert (read, decoded) == ([23], [8 * 23])


@pytest.mark.parametrize("workers", [0, 2])
def test_resume(photos, workers):
    whole = [digest([batch]) for batch in load(photos, CROPS, workers=0, threads=0)]
    loader = load(photos, CROPS, workers=workers)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    del batches
    loader.close()
    again = load(photos, CROPS, workers=workers)
    again.load_state_dict(state)
    assert [digest([batch]) for batch in again] == whole[2:]
    again.close()


def test_ranks_share_the_rows_of_a_batch(photos):
    (whole, *_) = load(photos, CROPS, workers=0, global_batch_size=6)
    ranks = [next(iter(load(photos, CROPS, workers=0, global_batch_size=6, rank=r, world=2))) for r in (0, 1)]
    parts = [torch.cat(parts, 1) for parts in zip(*(batch.image for batch in ranks), strict=True)]
    assert same(whole, parts)


def test_batches_of_one_sample(photos):
    (whole,) = load(photos, MIXED, workers=0, batch_size=23)
    for row, batch in enumerate(load(photos, MIXED, workers=0, batch_size=1)):
        assert same(batch, [part[:, row : row + 1] for part in whole.image])


def test_one_size_is_one_tensor(photos):
    (first, *_) = load(photos, [SMALL, CenterCrop(12)], workers=0)
    assert first.image.shape == (2, 4, 3, 12, 12)
    (alone, *_) = load(photos, [SMALL], workers=0)
    assert torch.equal(alone.image, first.image[0])


def test_damaged_images_and_other_formats(shard_of, of_view):
    samples = [sample(0), sample(1, b""), sample(2, picture("PNG", 5, size=(60, 50))), sample(3)]
    path = shard_of(*samples)
    (batch,) = load(path, MIXED, workers=0, flip=0.0, shuffle=False)
    other = int(batch.key[1][1:])
    centre = batch.image[2][0]
    assert other in (0, 2, 3) and torch.equal(centre[1], centre[other]), (
        "replaced in views without randomness"
    )
    assert batch.label[1] == batch.label[other]
    intact = shard_of(*(sample(1) if n == 1 else each for n, each in enumerate(samples)))
    (batch,) = load(intact, MIXED, workers=0, shuffle=False)
    alone = []
    for view, crop in enumerate(MIXED):
        of_view(view)
        alone.append(next(iter(load(intact, crop, workers=0, shuffle=False))).image)
    assert same(batch, stacked(alone, GROUPS["mixed"][1]))


@pytest.mark.parametrize("workers", [0, 1])
def test_streams_and_members(photos, workers):
    options = {"shuffle": False, "workers": workers, "members": ["cls"], "batch_size": 5}
    crops = [CenterCrop(16), CenterCrop(8), CenterCrop(8)]  # ids, and so random crops, are others in a stream
    mapped, streamed = (load(photos, crops, flip=0.0, streaming=flag, **options) for flag in (False, True))
    assert digest(mapped) == digest(streamed)
    mapped.close()
    streamed.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_sizes_change_together_with_the_epoch(photos, workers):
    crops = [Progressive(LARGE, {1: 48}), Progressive(SMALL, {1: 24, 2: 8}), LARGE]
    with pytest.raises(ValueError, match=r"are \[\[0, 2\], \[1\]\] in epoch 0 and .* in epoch 1, "):
        Split(photos, crops)
    crops[2] = Progressive(LARGE, {1: (48, 48)})
    loader = load(photos, crops, workers=workers)
    kept = [list(loader) for _ in range(3)]
    plain = load(photos, crops, workers=0, threads=0)
    assert [digest(epoch) for epoch in kept] == [digest(plain) for _ in range(3)]
    shapes = [[list(part.shape[2:]) for part in epoch[0].image] for epoch in kept]
    assert shapes == [[[3, side, side] for side in sides] for sides in ((32, 12), (48, 24), (48, 8))]
    loader.close()


def test_a_buffer_is_lent_until_the_last_tensor_is_gone():
    shapes = [(2, 4, 3, 6, 6), (3, 4, 3, 2, 2)]
    buffers = BatchBuffers(4 * 3 * (2 * 36 + 3 * 4), 0, shared=False)

    def lent(value):
        number = buffers.acquire()
        for part in buffers.view(number, shapes, torch.uint8):
            part.fill_(value)
        return buffers.lend(number, shapes, torch.uint8)

    first = lent(7)
    assert [part.shape for part in first] == shapes
    assert first[1].data_ptr() == first[0].data_ptr() + first[0].numel(), "one after the other"
    place, kept = first[0].data_ptr(), first[1][0]
    del first
    gc.collect()
    assert all(lent(9)[0].data_ptr() != place for _ in range(5)) and (kept == 7).all()
    del kept
    assert place in {lent(9)[0].data_ptr() for _ in range(5)}
    batches = [lent(value) for value in range(20)]
    assert all((part == value).all() for value, batch in enumerate(batches) for part in batch), "copies"


def test_a_dataloader_gets_the_same_batches(photos):
    expected = digest(load(photos, CROPS, workers=0))
    dataset = tarpeg.Dataset(load(photos, CROPS, workers=0))
    assert digest(torch.utils.data.DataLoader(dataset, batch_size=None)) == expected


# --- augmentation


def data_of(photos, augment, crops=CROPS, val=None, **settings):
    val = val or Split(photos, CenterCrop(16))
    settings = {"batch_size": 4, "workers": 0, "keys": True, "allow_overlap": True, **settings}
    return ShardDataModule(Split(photos, crops, flip=0.5), val, augment=augment, **settings)


def modules(kind):
    """One module per view of CROPS: three of ours, or one of them of a user's own."""
    first, second, third = heavy(), heavy(mask=None, erase=None), Augment(flip=0.5)
    if kind == "own":
        second = Halve()
    return [first, second] + [third] * 2 + [first] + [third] * 3


class Halve(nn.Module):
    def forward(self, images):
        return images.float() / 2


def seen(folder, data, net=None):
    return digest(fitted(folder, data, net).seen["train"])


def looped(data):
    return list(data.augmented(data.train_dataloader()))


@pytest.mark.parametrize("kind", ["ours", "own"])
def test_each_view_has_its_own_module_wherever_it_runs(photos, tmp_path, of_view, kind):
    augments = modules(kind)
    batches = looped(data_of(photos, augments))
    for engine in ({}, {"workers": 1}):
        assert seen(tmp_path, data_of(photos, augments, **engine)) == digest(batches)
    assert digest(looped(data_of(photos, nn.ModuleList(augments)))) == digest(batches)
    singles = []
    for view, (crop, augment) in enumerate(zip(CROPS, augments, strict=True)):
        of_view(view)
        singles.append([batch.image for batch in looped(data_of(photos, augment, crop))])
    for batch, *alone in zip(batches, *singles, strict=True):
        assert same(batch, stacked(alone, GROUPS["dino"][1]))


@pytest.mark.parametrize("augment", [heavy, Augment], ids=["heavy", "normalised"])
def test_one_module_draws_the_same_params_however_views_are_grouped(photos, tmp_path, of_view, augment):
    batches = looped(data_of(photos, augment(), MIXED))
    for engine in ({}, {"workers": 1}):
        assert seen(tmp_path, data_of(photos, augment(), MIXED, **engine)) == digest(batches)
    singles = []
    for view, crop in enumerate(MIXED):
        of_view(view)
        singles.append([batch.image for batch in looped(data_of(photos, augment(), crop))])
    for batch, *alone in zip(batches, *singles, strict=True):
        assert same(batch, stacked(alone, GROUPS["mixed"][1]))


def test_modules_of_equal_views_run_at_once(photos):
    calls = []

    class Counted(Halve):
        def forward(self, images):
            if self.training:  # in evaluation mode, two passes over the first batch are compared
                calls.append(list(images.shape))
            return super().forward(images)

    first, other = Counted(), Counted()
    next(iter(data_of(photos, [first] * 2 + [other] * 6).augmented(load(photos, CROPS, workers=0))))
    assert calls == [[8, 3, 32, 32], [24, 3, 12, 12]]


class Validated(Net):
    def validation_step(self, batch, batch_idx, dataloader_idx):
        self._see(batch)


@pytest.mark.parametrize("workers", [0, 1])
def test_evaluation(photos, tmp_path, workers):
    """A split of one view takes the first module; one of all views takes each view's."""
    augments = [Augment([0.1 * n] * 3, [1] * 3, flip=0.5) for n in range(8)]
    vals = [
        Split(photos, CenterCrop(16)),
        Split(photos, [CenterCrop(16), *[CenterCrop(8)] * 6, CenterCrop(16)]),
    ]
    data = data_of(photos, augments, val=vals, workers=workers)
    net = Validated()
    trainer(tmp_path).validate(net, datamodule=data, verbose=False)
    single, several = net.seen["validate"][0], net.seen["validate"][6]
    raw = next(iter(load(photos, CenterCrop(16), workers=0, flip=0, shuffle=False))).image / 255
    small = next(iter(load(photos, CenterCrop(8), workers=0, flip=0, shuffle=False))).image / 255
    assert torch.allclose(single.image, raw, atol=1e-6)
    assert torch.allclose(several.image[0], torch.stack([raw, raw - 0.7]), atol=1e-6)
    assert torch.allclose(several.image[1], torch.stack([small - 0.1 * n for n in range(1, 7)]), atol=1e-6)
    assert digest(data.augmented(data.val_dataloader()[1])) == digest(net.seen["validate"][6:])
    data.teardown()


def test_the_sheet_shows_all_views(photos, tmp_path):
    data = data_of(photos, modules("own"))
    loader = data.train_dataloader()
    batch = next(iter(loader))
    data.augment.train()
    cards = preview._cards(data.augment, loader, batch, loader.claim(), 4)
    assert all(len(card.pictures) == len(card.texts) == 17 for card in cards)
    assert _length(batch) == 4
    header = preview._header(data, "train", 0, 4)
    assert header[1].startswith("2 x (RandomResizedCrop size 32 x 32, scale 0.4..1); 6 x (RandomResizedCrop ")
    assert "; Halve; 2 x (flip 0.5); " in header[2]
    loader.close()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (3, r"augment= .*\b3 modules.* 8 views"),
        (0, "augment= has 0 modules"),
    ],
)
def test_wrong_numbers_of_modules(photos, count, text):
    with pytest.raises(ValueError, match=text):
        data_of(photos, [Augment()] * count)
    with pytest.raises(ValueError, match=r"augment= .*8 .*val .*3 views"):
        data_of(photos, [Augment()] * 8, val=Split(photos, CenterCrop(8), views=3))
    with pytest.raises(ValueError, match="one module per view"):
        data_of(photos, [Augment(), *[None] * 7])
    with pytest.raises(ValueError, match=r"augment=GaussianBlur .*validation"):
        from torchvision.transforms import v2

        data_of(photos, [v2.GaussianBlur(3)] * 8)


class Hook(Net):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_before_batch_transfer(self, batch, _):
        image, label = self.change(*batch[:2]) if self.trainer.training else batch[:2]
        return batch._replace(image=image, label=label)


HOOKS = {
    r"the batch has \[2\] views of each size, but \[2, 6\] were": lambda image, label: (image[:1], label),
    r"the views of a batch have 4 and 3 images": lambda image, label: ([image[0], image[1][:, 1:]], label),
    r"the batch has 3 images and 3 labels, but 4 were delivered": lambda image, label: (
        [part[:, 1:] for part in image],
        label[1:],
    ),
}


@pytest.mark.parametrize("text", HOOKS)
def test_a_hook_that_removes_views_or_samples_is_an_error(photos, tmp_path, text):
    with pytest.raises(ValueError, match=text):
        fitted(tmp_path, data_of(photos, heavy()), Hook(HOOKS[text]))


def test_results_of_views_of_one_size_must_fit(photos):
    augments = [Augment(dtype="float16"), Augment(), *[Augment()] * 6]
    with pytest.raises(
        ValueError, match=r"returns torch.float16 \[3, 32, 32\] and torch.float32 \[3, 32, 32\] for"
    ):
        looped(data_of(photos, augments))


def test_mixing_refuses_views(photos):
    text = r"mix=Mix\(classes=5.* train has 8 views of each image"
    for augment in (Augment(mix=Mix(5)), [Augment(mix=Mix(5))] * 8):
        with pytest.raises(ValueError, match=text):
            looped(data_of(photos, augment))


def test_a_fetcher_writes_into_out(photos):
    split = Split(photos, CROPS)
    fetcher = Fetcher(split.open(), split, seed=0, on_error="raise", keys=False)
    request = tarpeg.sampling.sampler.Request(1, rng.np.array([3, 1]))
    shapes = fetcher.shape(request)
    assert shapes == [(2, 2, 3, 32, 32), (6, 2, 3, 12, 12)] and fetcher.nbytes(request) == 12288 + 5184
    out = [torch.zeros(*s[:-3], *s[-2:], 3, dtype=torch.uint8).movedim(-1, -3) for s in shapes]
    found = fetcher.fetch(request, out).batch.image
    assert [part.data_ptr() for part in found] == [part.data_ptr() for part in out]
    assert all(map(torch.equal, found, fetcher.fetch(request).batch.image))

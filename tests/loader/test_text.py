"""Captions: what is drawn and tokenised, for any workers, ranks and after a resume, and broken ones."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
import tarpeg
import torch
from helpers.captions import (
    WORDS,
    Captioned,
    drawn,
    padded,
    tokenize,
    transformers_tokenizer,
)
from tarpeg import CenterCrop, Loader, LoaderConfig, RandomCrop, ShardError, Split, Text, Tokens

SOURCE = Captioned()
CROP = RandomCrop(16)


def split_of(text, source=SOURCE, **options):
    return Split(source, CROP, members=text, **options)


def loader_of(text, source=SOURCE, *, rank=0, world=1, training=True, options=None, **config):
    config = LoaderConfig(**{"batch_size": 4, "workers": 0, "threads": 0, "seed": 7, **config})
    split = split_of(text, source, **(options or {}))
    return Loader(split, training=training, rank=rank, world=world, config=config)


def flat(loader):
    """By sample: label, caption or tokens and mask, of an epoch."""
    found = {}
    for batch in loader:
        rows = batch.extra
        if isinstance(rows, Tokens):
            rows = zip(rows.input_ids.tolist(), rows.attention_mask.tolist(), strict=True)
        for label, row in zip(batch.label.tolist(), rows, strict=True):
            assert label not in found
            found[label] = row
    return found


@pytest.mark.parametrize("member", ["txt", "json:captions"])
def test_one_caption_of_each_sample_is_drawn_per_epoch(member):
    loader = loader_of(Text(member, dropout=0.3, lines=member == "txt"))
    epochs = [flat(loader) for _ in range(4)]
    for epoch, found in enumerate(epochs):
        assert found == {
            id: drawn(captions, id, seed=7, epoch=epoch, dropout=0.3)
            for id, captions in enumerate(SOURCE.captions)
        }
    texts = [text for found in epochs for text in found.values()]
    assert 0.1 < texts.count("") / len(texts) < 0.5 and epochs[0] != epochs[1]


@pytest.mark.parametrize("runner", [{"workers": 2}, {"threads": 2}], ids=str)
@pytest.mark.parametrize("is_of_transformers", [False, True])
def test_tokens_are_those_of_the_caption_for_any_workers(runner, is_of_transformers):
    tokenizer = transformers_tokenizer() if is_of_transformers else tokenize
    text = Text("json:captions", tokenizer=tokenizer, max_length=6, dropout=0.3)
    loader = loader_of(text, **runner)
    for epoch in range(2):
        captions = [
            drawn(each, id, seed=7, epoch=epoch, dropout=0.3) for id, each in enumerate(SOURCE.captions)
        ]
        rows = [tokenize(caption)[:6] for caption in captions]
        if is_of_transformers:  # cut before its last token
            rows = [[2, *tokenize(caption)[:4], 3] for caption in captions]
        expected = dict(enumerate(zip(*padded(rows, 6), strict=True)))
        assert flat(loader) == expected
    loader.close()


def test_ranks_and_a_resume_have_the_same_captions():
    text = Text("json:captions", tokenizer=tokenize, max_length=9, dropout=0.2)
    whole = flat(loader_of(text, global_batch_size=6))
    merged = {}
    for rank in range(3):
        merged |= flat(loader_of(text, rank=rank, world=3, global_batch_size=6))
    assert merged == whole
    loader = loader_of(text, global_batch_size=6)
    steps = iter(loader)
    seen = {label for _ in range(2) for label in next(steps).label.tolist()}
    state = loader.state_dict()
    other = loader_of(text, rank=0, world=1, global_batch_size=6)
    other.load_state_dict(state)
    assert flat(other) == {label: row for label, row in whole.items() if label not in seen}


def test_a_sample_that_comes_twice_has_captions_of_its_own():
    source = Captioned(count=2)
    weights = [0.0, 1.0]
    source.captions[1] = [str(number) for number in range(1000)]
    loader = loader_of(Text("json:captions"), source, options={"weights": weights})
    (batch,) = loader
    assert len({*batch.extra}) == 2
    expected = {
        drawn(source.captions[1], 1, seed=7, epoch=0, dropout=0, occurrence=number) for number in range(2)
    }
    assert {*batch.extra} == expected


def test_validation_drops_no_caption_and_first_is_the_first():
    loader = loader_of(Text("json:captions", dropout=1.0, choose="first"), training=False)
    assert flat(loader) == {id: captions[0] for id, captions in enumerate(SOURCE.captions)}
    dropped = loader_of(Text("json:captions", dropout=1.0, tokenizer=tokenize))
    assert all(batch.extra.attention_mask.tolist() == [[0]] * len(batch.label) for batch in dropped)


def test_all_captions_are_padded_in_number_and_in_length():
    texts = flat(loader_of(Text("txt", lines=True, choose="all"), training=False))
    assert texts == dict(enumerate(SOURCE.captions))
    text = Text("txt", lines=True, choose="all", tokenizer=tokenize)
    for batch in loader_of(text, training=False):
        lists = [[tokenize(caption) for caption in SOURCE.captions[id]] for id in batch.label.tolist()]
        most = max(map(len, lists))
        width = max(len(row) for rows in lists for row in rows)
        for number, rows in enumerate(lists):
            ids, mask = padded(rows + [[]] * (most - len(rows)), width)
            assert batch.extra.input_ids[number].tolist() == ids
            assert batch.extra.attention_mask[number].tolist() == mask
        assert batch.extra.input_ids.dtype == torch.int64


def test_batches_without_a_limit_are_as_wide_as_their_longest_caption_and_padded_as_the_tokenizer_says():
    tokenizer = transformers_tokenizer(padding_side="left")
    for batch in loader_of(Text("json:one", tokenizer=tokenizer, pad_id=9), training=False):
        rows = [[2, *tokenize(SOURCE.captions[id][0]), 3] for id in batch.label.tolist()]
        ids, mask = padded(rows, max(map(len, rows)), 9, left=True)
        assert batch.extra.input_ids.tolist() == ids and batch.extra.attention_mask.tolist() == mask


def test_tokens_go_through_augmentation_and_a_data_module():
    split = split_of({"a": Text("json:one", tokenizer=tokenize), "b": Text("json:one")}, views=2)
    module = tarpeg.ShardDataModule(split, batch_size=4, workers=0, augment=tarpeg.Augment())
    loaders = [
        Loader(split, 4, augment=tarpeg.Augment(), device="cpu", workers=0),
        module.augmented(module.train_dataloader()),
    ]
    for loader in loaders:
        batch = next(iter(loader))
        assert batch.image.dtype == torch.float32
        assert batch.extra["b"] == [SOURCE.captions[id][0] for id in batch.label.tolist()]
        assert batch.extra["a"].attention_mask.sum(1).tolist() == [len(x.split()) for x in batch.extra["b"]]


def test_several_texts_draw_the_same_caption():
    texts = {"text": Text("json:captions"), "tokens": Text("json:captions", tokenizer=tokenize, max_length=9)}
    for batch in loader_of(texts):
        rows = [tokenize(caption) for caption in batch.extra["text"]]
        assert batch.extra["tokens"].input_ids.tolist() == padded(rows, 9)[0]


BROKEN = {
    "missing": ("txt", {"txt": None}, "no member 'txt'"),
    "not UTF-8": ("txt", {"txt": b"\xff\xfe\xff"}, "member 'txt' is not UTF-8"),
    "empty": ("txt", {"txt": b" \n"}, "member 'txt' is empty"),
    "too long": ("txt", {"txt": b"a " * (1 << 20)}, "member 'txt' has 2097152 bytes"),
    "not JSON": ("json:one", {"json": b"{"}, "member 'json' is not JSON"),
    "no field": ("json:one", {"json": b"{}"}, "no field 'one'"),
    "a number": ("json:one", {"json": b'{"one": 3}'}, "field 'one' of member 'json' is 3, neither"),
    "an empty list": ("json:one", {"json": b'{"one": []}'}, r"is \[\], neither"),
    "an empty text": ("json:one", {"json": b'{"one": ["a", ""]}'}, "a caption is empty"),
    "half a pair": ("json:one", {"json": rb'{"one": "\ud800"}'}, "is not Unicode"),
    "an unknown word": ("txt", {"txt": b"a bird"}, "member 'txt' is \"a bird\": tokenizer=tokenize failed"),
    "too many tokens": ("txt", {"txt": b"a " * 99}, "it has 99 tokens, more than max_length=60"),
}


@pytest.mark.parametrize(("member", "changed", "match"), BROKEN.values(), ids=BROKEN)
def test_a_broken_caption_is_a_broken_image(member, changed, match):
    source = Captioned(count=9, k3=changed)
    text = Text(member, tokenizer=tokenize, max_length=60, truncate=False, choose="first")
    with pytest.raises(ShardError, match=rf"shard Captioned, key 'k3'.*{match}"):
        list(loader_of(text, source, on_error="raise"))
    with pytest.warns(UserWarning, match=f"'k3'.*{match}.*takes its place"):
        batches = list(loader_of(text, source))
    for batch in batches:  # image, label and caption are of one sample
        for label, row in zip(batch.label.tolist(), batch.extra.input_ids.tolist(), strict=True):
            tokens = tokenize(source.captions[label][0]) if member != "txt" else None
            whole = tokenize(" ".join(source.captions[label])) if member == "txt" else tokens
            assert label != 3 and row == padded([whole], 60)[0][0]
    with pytest.warns(UserWarning, match="left out of its batch"):
        left = flat(loader_of(text, source, on_error="leave_out", training=False))
    assert sorted(left) == [0, 1, 2, 4, 5, 6, 7, 8]


def test_a_sample_with_too_many_captions_is_broken():
    source = Captioned(count=3, k1={"json": json.dumps({"captions": ["a"] * 1001}).encode()})
    with pytest.raises(ShardError, match=r"'k1'.*has 1001 captions, more than 1000"):
        list(loader_of(Text("json:captions", choose="all"), source, on_error="raise"))


@pytest.mark.parametrize(
    ("member", "changed"),
    [
        ("txt?", {"txt": None}),
        ("txt?", {"txt": b""}),
        ("json:one?", {"json": None}),
        ("json:one?", {"json": b"{}"}),
    ],
)
def test_captions_that_may_be_missing_are_empty(member, changed):
    found = flat(loader_of(Text(member), Captioned(count=5, k3=changed)))
    assert found[3] == "" and found[2] != ""


NONSENSE = {
    "nothing": lambda text: None,
    "a text": lambda text: text,
    "floats": lambda text: [1.5],
    "negative numbers": lambda text: [-1],
    "lists": lambda text: [[1, 2], [3]],
    "a table": lambda text: torch.zeros(2, 3, dtype=torch.int64),
    "bools": lambda text: [True],
    "too large": lambda text: [1 << 63],
}


@pytest.mark.parametrize("tokenizer", NONSENSE.values(), ids=NONSENSE)
def test_what_is_no_list_of_tokens(tokenizer):
    with pytest.raises(ShardError, match=r"key 'k\d+'.*member 'txt'.*<lambda> returned .*, not a list of"):
        next(iter(loader_of(Text("txt", tokenizer=tokenizer), on_error="raise")))


def test_what_functions_may_return():
    for given in (
        lambda text: torch.tensor([tokenize(text)], dtype=torch.int32),
        lambda text: {"input_ids": tokenize(text), "attention_mask": None},
        lambda text: tuple(tokenize(text)),
    ):
        batch = next(iter(loader_of(Text("json:one", tokenizer=given), training=False)))
        rows = [tokenize(SOURCE.captions[id][0]) for id in batch.label.tolist()]
        assert batch.extra.input_ids.tolist() == padded(rows, max(map(len, rows)))[0]


class Encoding(NamedTuple):
    """As tokenizers.Encoding."""

    ids: list[int]
    attention_mask: list[int]


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("kind", ["dict", "tensors", "Encoding"])
def test_padding_that_a_tokenizer_masks_keeps_its_token_and_is_masked(kind, is_left):
    def pad(text):
        (ids,), (mask,) = padded([tokenize(text)], 10, 77, left=is_left)
        if kind == "tensors":
            return {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}
        return Encoding(ids, mask) if kind == "Encoding" else {"input_ids": ids, "attention_mask": mask}

    for most in (None, 12, 9):  # with 9 the padding of the tokenizer is too long, not the caption
        text = Text("json:one", tokenizer=pad, max_length=most, truncate=False)
        for batch in loader_of(text, training=False):
            rows = [tokenize(SOURCE.captions[id][0]) for id in batch.label.tolist()]
            own = padded(rows, 9) if most == 9 else padded(rows, 10, 77, left=is_left)
            rest = [0] * (2 * (most == 12))
            for each, found in zip(own, batch.extra, strict=True):
                assert found.tolist() == [[*row, *rest] for row in each]


def test_an_attention_mask_that_is_none():
    for mask in ([1], [2] * 3, [[1, 1], [1]], "111"):
        text = Text("json:one", tokenizer=lambda text: {"input_ids": [1, 2, 3], "attention_mask": mask})  # noqa: B023
        with pytest.raises(ShardError, match=r"key 'k\d+'.* returned the attention_mask .*each of its 3 tok"):
            next(iter(loader_of(text, on_error="raise")))


def test_a_mixture_has_the_captions_of_its_sources():
    sources = {"a": SOURCE, "b": Captioned(count=11, seed=1)}
    text = Text("json:captions", tokenizer=tokenize)
    splits = {name: split_of(text, source) for name, source in sources.items()}
    mixture = tarpeg.Mixture(splits, weights={"a": 2, "b": 1})
    for batch in tarpeg.MixtureLoader(mixture, config=LoaderConfig(batch_size=6, workers=0, seed=7)):
        pairs = zip(batch.source.tolist(), batch.label.tolist(), strict=True)
        captions = [sources["ab"[source]].captions[label] for source, label in pairs]
        rows = [
            tokenize(drawn(each, label, seed=7, epoch=0, dropout=0))
            for each, label in zip(captions, batch.label.tolist(), strict=True)
        ]
        assert batch.extra.input_ids.tolist() == padded(rows, max(map(len, rows)))[0]
    splits["b"] = split_of(Text("json:captions"), sources["b"])
    with pytest.raises(ValueError, match="members of the sources 'a' and 'b'"):
        tarpeg.MixtureLoader(tarpeg.Mixture(splits, weights={"a": 2, "b": 1}), 6, workers=0)


def test_streams(shard_of):
    from helpers.captions import JPEG

    samples = [
        [(f"k{id}.jpg", JPEG), (f"k{id}.cls", b"%d" % id), (f"k{id}.json", json.dumps(each).encode())]
        for id, each in enumerate(SOURCE.captions[:8])
    ]
    split = Split(shard_of(*samples), CROP, members=Text("json"), streaming=True)
    for batch in Loader(split, 4, workers=0):
        for label, caption in zip(batch.label.tolist(), batch.extra, strict=True):
            assert caption in SOURCE.captions[label]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"member": 3}, "member=3"),
        ({"member": "json:"}, "member='json:'"),
        ({"tokenizer": 3}, "tokenizer=int"),
        ({"max_length": 0, "tokenizer": tokenize}, "max_length=0"),
        ({"max_length": 3}, "max_length=3 of Text is about tokens"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"choose": "last"}, "choose='last'"),
        ({"choose": "all", "dropout": 0.1}, "choose='all'"),
        ({"member": "json:a", "lines": True}, "lines=True"),
        ({"truncate": 1}, "truncate=1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Text(**{"member": "txt", **arguments})


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"members": [Text("txt")]}, "members=.*dict of them by name"),
        ({"members": {"a": "txt"}}, "members=.*dict of them by name"),
        ({"members": {}}, "members="),
        ({"members": Text("txt"), "decode": len}, "decode="),
        ({"members": Text("txt"), "targets": tarpeg.Boxes("json:objects")}, "members="),
        ({"members": Text("txt"), "crop": tarpeg.Mosaic(16)}, "captions of one"),
    ],
    ids=str,
)
def test_bad_splits(options, match):
    with pytest.raises(ValueError, match=match):
        Split(**{"shards": SOURCE, "crop": CenterCrop(16), **options})


def test_a_tokenizer_of_transformers_with_words_that_it_does_not_know():
    source = Captioned(count=3, k1={"txt": b"a bird, and\ta cat"})
    batch = next(iter(loader_of(Text("txt", tokenizer=transformers_tokenizer()), source, training=False)))
    cat = 4 + WORDS.index("cat")
    assert batch.extra.input_ids[1].tolist()[:7] == [2, 4, 1, 1, 4, cat, 3]

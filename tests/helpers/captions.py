"""Photographs with random captions, and what ``Text`` must make of them, one sample after another."""

from __future__ import annotations

import json
import random

import tarpeg
from tarpeg.sampling import rng
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from helpers.pictures import jpeg

WORDS = ["a", "cat", "dog", "on", "red", "chair", "grün", "猫"]
JPEG = jpeg("420", 40, 48)


class Captioned(tarpeg.Source):
    """Pictures with members ``txt``, of several lines, and ``json``, with the same lines in a list."""

    def __init__(self, count=23, seed=0, **changed):
        draw = random.Random(seed)
        self.captions = [
            [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(draw.randint(1, 5))]
            for _ in range(count)
        ]
        self.changed = changed  # by key: members of samples that are otherwise

    def __len__(self):
        return len(self.captions)

    def keys(self, ids):
        return [f"k{id}" for id in ids]

    def members(self, ids, extension):
        return [self._members(int(id)).get(extension) for id in ids]

    def extensions(self, id):
        return list(self._members(id))

    def _members(self, id):
        lines = self.captions[id]
        found = {
            "jpg": JPEG,
            "cls": b"%d" % id,
            "txt": "\n".join(lines).encode(),
            "json": json.dumps({"captions": lines, "one": lines[0]}).encode(),
        }
        found |= self.changed.get(f"k{id}", {})
        return {name: content for name, content in found.items() if content is not None}


def tokenize(text):
    """Tokens from 4 on, one per word."""
    return [4 + WORDS.index(word) for word in text.split()]


def transformers_tokenizer(**options):
    """A tokenizer of transformers with the same tokens between [BOS], 2, and [EOS], 3; [PAD] is 0."""
    special = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pairs = [("[BOS]", 2), ("[EOS]", 3)]
    inner.post_processor = processors.TemplateProcessing(single="[BOS] $A [EOS]", special_tokens=pairs)
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", **options)


def drawn(captions, id, *, seed, epoch, dropout, occurrence=0):
    """The caption of a sample in an epoch, "" if it is dropped."""
    drop, which = rng.uniforms(seed, epoch, [id], 2, 6, occurrence << 32)[0]
    return "" if drop < dropout else captions[int(which * len(captions))]


def padded(rows, width, pad=0, *, left=False):
    """Rows of tokens as lists of equal length, and their mask."""
    ids, mask = [], []
    for row in rows:
        rest = width - len(row)
        ids.append([pad] * rest + row if left else row + [pad] * rest)
        mask.append([0] * rest + [1] * len(row) if left else [1] * len(row) + [0] * rest)
    return ids, mask

"""Two coefficients by one lookup: blocks that end where a pair begins, long codes, runs out of the block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tarpeg
from helpers import crafted
from helpers.crafted import Code, Jpeg
from test_regular_streams import check, status_of

ALL = (0, 0, 32, 48)


def shortest(*symbols: int) -> tuple[Code, Code]:
    """A code in which these AC symbols have 1, 2, ... bits and all others many."""
    rest = [symbol for symbol in crafted.AC_SYMBOLS if symbol not in symbols]
    return Code(crafted.DC_SYMBOLS, 3, 8), Code(
        [*symbols, *rest], len(symbols), 12 if len(symbols) <= 4 else 15
    )


CODES = {
    "ones": shortest(0x01, 0x00),
    "end": shortest(0x00, 0x01),
    "runs": shortest(0xF0, 0x00, 0x11),
    "twos": shortest(0x02, 0x12, 0x00, 0x01),
    "large": shortest(0x06, 0x07, 0x00),  # values that fill the lookup
    "mixed": shortest(0x11, 0x21, 0x01, 0x00, 0x02, 0xF0, 0xF1),
    "long": crafted.LONG,
}


def picture(codes: str, interval: int = 0) -> Jpeg:
    return Jpeg(32, 48, codes=CODES[codes], interval=interval, tables=((2,) * 64,) * 2).noise()


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("interval", [0, 1])
def test_any_code(codes: str, interval: int) -> None:
    for strength in (3, 40, 300):
        check(picture(codes, interval).noise(strength=strength).bytes(), [ALL])


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("interval", [0, 1])
def test_blocks_that_end_at_every_coefficient(codes: str, interval: int) -> None:
    """The last may be the first or the second of a pair; behind the 64th there is no end-of-block code."""
    source = picture(codes, interval)
    rng = np.random.default_rng(7)
    for values in source.coefficients:
        values[..., 1:] = rng.choice([-1, 1, 1, 2], values[..., 1:].shape)
        last = rng.choice([0, 1, 2, 30, 59, 60, 61, 62, 63, 63, 63], values.shape[:2])
        values[np.arange(64) > last[..., None]] = 0
    check(source.bytes(), [ALL])


@pytest.mark.parametrize("codes", ["runs", "mixed", "long", "end"])
def test_sparse_blocks_up_to_the_last_coefficient(codes: str) -> None:
    source = picture(codes)
    rng = np.random.default_rng(8)
    for values in source.coefficients:
        values[..., 1:] *= rng.random(values[..., 1:].shape) < 0.05
        values[..., 63] = rng.choice([-1, 0, 1], values.shape[:2])
    check(source.bytes(), [ALL])


@pytest.mark.parametrize("symbols", [[0xF0] * 4, [0x01] * 60 + [0xF1], [0x01] * 62 + [0x11]])
@pytest.mark.parametrize("behind", [0x00, 0x01])
def test_runs_that_lead_out_of_the_block(symbols: list[int], behind: int) -> None:
    """Whatever comes behind such a run, a pair must not hide it: libjpeg decides."""
    for codes in ("ones", "end", "runs", "mixed"):
        source = Jpeg(8, 8, ((1, 1),), ids=(1,), codes=CODES[codes])
        bits = crafted.Bits()
        bits.put(*CODES[codes][0].codes[0])
        for symbol in [*symbols, behind]:
            bits.put(*CODES[codes][1].codes[symbol])
            bits.put(1, symbol & 15)
        source = replace(source, coefficients=[np.zeros((1, 1, 64), int)])
        header = source.scan([0])[: 2 + 8]
        data = source.head() + header + bits.take() + b"\xff\xd9"
        if status_of(data, (0, 0, 8, 8)) == tarpeg.Status.OK:
            check(data, [(0, 0, 8, 8)])


@pytest.mark.parametrize("codes", CODES)
def test_data_that_end_too_early_are_a_status(codes: str) -> None:
    for interval in (0, 1):
        data = picture(codes, interval).bytes()
        for cut in range(8, 60, 3):
            short = data[:-cut] + b"\xff\xd9"
            assert status_of(short, ALL) in (tarpeg.Status.CORRUPT, tarpeg.Status.TRUNCATED), cut

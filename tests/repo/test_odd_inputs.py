"""Files that never end, or wait for a writer, wherever a path is given: an error at once."""

from __future__ import annotations

import os
import re

import pytest
import tarpeg
from tarpeg.errors import ShardError

from training.checks import ConfigError, check_arrays, read_checkpoint


def split_of(shards, **settings):
    return tarpeg.Loader(tarpeg.Split(shards, tarpeg.CenterCrop(8), **settings), batch_size=1, workers=0)


USES = {
    "labels": (lambda path, shards: split_of(shards, labels=path, key="file"), ShardError),
    "parquet": (lambda path, shards: split_of(shards, labels=path, key="file"), ShardError),
    "weights": (lambda path, shards: split_of(shards, weights=path), ValueError),
    "subset": (lambda path, shards: split_of(shards, subset=path), ValueError),
    "preprocessing": (lambda path, shards: tarpeg.preprocessing(path), OSError),
    "arrays": (lambda path, shards: check_arrays({"train": {"weights": path}}), ConfigError),
    "checkpoint": (lambda path, shards: read_checkpoint(path), OSError),
}
SUFFIXES = {"labels": ".csv", "parquet": ".parquet", "weights": ".npy", "subset": ".npy", "arrays": ".npy"}


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["fifo", "zero"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.timeout(30)
def test_a_file_that_never_ends_is_an_error_at_once(photos, tmp_path, use, make):
    if use == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"odd{SUFFIXES.get(use, '.ckpt')}"
    make(path)
    call, error = USES[use]
    with pytest.raises(
        error, match=f"(?s){re.escape(path.name)}.*not a regular file|not a regular file.*odd"
    ):
        call(str(path), photos)

"""The operator that reads fields of the objects of JSON documents, without an object of Python for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from . import library
from .scanned import Scanned

library.load()


def scan_objects(
    texts: Sequence[bytes], path: Sequence[str], fields: Sequence[str], image_id: str | None = None
) -> Scanned | None:
    """Read fields of the objects of JSON documents.

    Args:
        texts: B documents.
        path: Names that lead to the list of objects in each.
        fields: Names of the fields.
        image_id: Field of a document with the number of its image; None for none.

    Returns:
        None if one of the documents is not JSON, has no such list, or is not plain: it must be read by
        Python's parser, which finds the error, or reads it. What is read is what that parser reads.
    """
    names = [*path, *fields, *filter(None, [image_id])]
    is_plain = all(name and "\n" not in name and name.isascii() for name in names)
    if not is_plain or len({*fields}) < len(fields) or image_id == "":
        return None
    content = bytearray().join([*texts, b"\0"])  # not empty
    facts, cells, numbers, lengths = torch.ops.tarpeg.scan_objects(
        torch.frombuffer(content, dtype=torch.uint8),
        torch.from_numpy(np.cumsum([len(text) for text in texts], dtype=np.int64)),
        "\n".join(path),
        "\n".join(fields),
        image_id or "",
    )
    if len(facts) < len(texts):
        return None
    return Scanned(
        counts=facts.numpy()[:, 0],
        image_ids=facts.numpy()[:, 1],
        cells=cells.numpy().reshape(-1, len(fields), 5),
        numbers=numbers.numpy().reshape(-1),
        lengths=lengths.numpy().reshape(-1),
        content=content,
    )


@torch.library.register_fake("tarpeg::scan_objects")  # type: ignore[untyped-decorator]
def _fake_scan_objects(files: Tensor, ends: Tensor, *_: str) -> tuple[Tensor, ...]:
    # Sizes that depend on the data.
    size = torch.library.get_ctx().new_dynamic_size
    return (
        ends.new_empty((size(), 2)),
        ends.new_empty((size(), 5)),
        ends.new_empty((size(), 1), dtype=torch.float64),
        ends.new_empty((size(), 1)),
    )

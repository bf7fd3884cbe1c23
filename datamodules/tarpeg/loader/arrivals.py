"""The consumer's side of ``decode="device"``: batches that are decoded where they arrive, and damage."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import Status, warn
from ..sampling.sampler import Request
from ..shards.source import Source, where_of
from .batch import AnyBatch, Images, Pieces, by_size, of_sizes

# The label of an image that turned out to be damaged: losses of torch ignore it.
IGNORED = -100


class Decodes(Protocol):
    """The loader of a batch."""

    def arrived(self, batch: AnyBatch, augment: nn.Module | None = None) -> AnyBatch:
        """Decode a batch on the device where it is, see ``Loader.arrived``."""
        ...


class GatheredImages:
    """The images of a batch that is yet to be decoded: under Lightning, until ``on_after_batch_transfer``.

    Args:
        loader: What delivered it, and decodes it.
        request: The request for the batch.
        images: Images of each size, with pixels in the rows that the worker decoded, and behind them the
            memory of what was gathered.
        pieces: What was gathered.
        left_out: Rows that are left out of the batch.
        known: Messages about rows that the worker could not decode.

    Attributes:
        pins: Whether to copy to CUDA by pinned memory.
    """

    pins = False
    has_refused = False
    """Whether torch could not pin memory in this process: it is not tried again."""

    def __init__(
        self,
        loader: Decodes,
        request: Request,
        images: Images,
        pieces: Pieces,
        left_out: Sequence[int] = (),
        known: Sequence[str] = (),
    ) -> None:
        parts, memory = images[:-1], images[-1]
        self.loader, self.request, self.pieces = loader, request, pieces
        self.left_out, self.known = left_out, known
        self.shapes = [tuple(part.shape) for part in parts]
        self.data = memory[pieces.begin : max(pieces.begin, pieces.end)]
        self.rows = torch.tensor(pieces.rows, dtype=torch.int64, device="cpu")
        # Copies, of few rows: the rest of these pixels is not sent.
        self.pixels = [part.index_select(part.ndim - 4, self.rows) for part in parts] if pieces.rows else []

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.request.ids) - len(self.left_out)

    def to(self, device: torch.device | str | None, *, non_blocking: bool = False) -> GatheredImages:
        """Send the batch to a device, where it will be decoded; Lightning calls it."""
        if device is not None:
            if self.pins and torch.device(device).type == "cuda":
                self.data, non_blocking = self._pinned(), True
            self.data = self.data.to(device, non_blocking=non_blocking)
            self.rows = self.rows.to(device, non_blocking=non_blocking)
            self.pixels = [part.to(device, non_blocking=non_blocking) for part in self.pixels]
        return self

    def _pinned(self) -> Tensor:
        """Return the data in pinned memory of torch's, which waits for the copies from it by itself."""
        if not GatheredImages.has_refused:
            try:
                return self.data.pin_memory()
            except RuntimeError as error:
                GatheredImages.has_refused = True
                warn(f"batches are not pinned: {error}. Training goes on; pin=False turns this off")
        return self.data

    def decode(self, threads: int) -> tuple[Images, Tensor]:
        """Decode the batch on its device, with rows that are left out of it.

        Args:
            threads: Number of threads on the CPU.

        Returns:
            Images as a loader delivers them, and int32 [B], the ``Status`` of each row.
        """
        # This import loads the operators; importing this module must not.
        from ..ops.gather import ALIGN, Gathered, decode_gathered

        count, data = len(self.request.ids), self.data
        is_aligned = data.device.type != "cpu" or data.data_ptr() % ALIGN == 0
        if not is_aligned:  # a copy, if the consumer keeps many batches
            data = data.clone()
        status = torch.zeros(count, dtype=torch.int32, device=data.device)
        found = []
        for number, shape in enumerate(self.shapes):
            *lead, channels, height, width = shape
            if self.pieces.places:
                piece = self.pieces.places[number]
                content = data[piece.begin : piece.begin + piece.nbytes]
                known = status.new_empty(1).expand(int(np.prod(lead)))
                gathered = Gathered(content, known, (height, width), channels, piece.work, piece.chunks)
                images, each = decode_gathered(gathered, threads=threads)
                images = images.view(shape)
                status = torch.maximum(status, each.view(-1, count).amax(0))
            else:
                images = data.new_empty((*lead, height, width, channels)).movedim(-1, -3)
            if self.pixels:
                images.index_copy_(len(lead) - 1, self.rows, self.pixels[number])
            found.append(images)
        return of_sizes(found), status.index_fill(0, self.rows, int(Status.OK)) if self.pixels else status


def masked(batch: Any, status: Tensor) -> Any:
    """Return a batch with integer labels [B] or [B, n], ``IGNORED`` for images that were not decoded.

    All views of these become zeros: damage may be in the tiles of one of them only.
    """
    is_bad = status != Status.OK
    parts = by_size(batch.image)
    for part in parts if len(parts) > 1 or parts[0].ndim > 4 else []:
        part.masked_fill_(is_bad.view(-1, 1, 1, 1), 0)
    of_label = is_bad.view(-1, *[1] * (batch.label.ndim - 1))
    return batch._replace(label=batch.label.masked_fill(of_label, IGNORED))


@dataclass(frozen=True)
class _Pending:
    """The statuses of a batch on their way to the CPU.

    Args:
        status: int32 [B], on the CPU.
        event: Done when they are there; None if they are.
        request: The request for the batch.
    """

    status: Tensor
    event: Any
    request: Request


class Arrivals:
    """Statuses of batches that were decoded on a device, which nothing has waited for."""

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()

    def add(self, status: Tensor, request: Request) -> None:
        """Begin to copy the statuses of a batch from its device."""
        event = None
        copy = status.to("cpu", non_blocking=True)  # to pinned memory
        if status.device.type == "cuda":
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(status.device))
        self._pending.append(_Pending(copy, event, request))

    def damaged(self, source: Source) -> list[str]:
        """Wait for all statuses that were added; return what is damaged, with shard and key."""
        found = []
        while self._pending:
            each = self._pending.popleft()
            if each.event is not None:
                each.event.synchronize()
            for row in each.status.numpy().nonzero()[0].tolist():
                code = Status(int(each.status[row]))
                where = where_of(source, int(each.request.ids[row]))
                found.append(f"{where}: image is {code.name} ({code:d}), found where the batch was decoded")
        return found

"""Images of parts of several samples, of a mosaic or of objects that are pasted: steps 1 to 3 of ``fetch``.

All files are read, the parts are drawn (``parts``, ``pasting``), and each is decoded to its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.decode import image_sizes
from ..sampling.geometry import Int32, View
from ..sampling.parts import drawn_parts, first_parts
from ..sampling.sampler import Request
from .batch import Decoded, Encoded, Images, by_size, empty_images, of_sizes
from .drawing import Drawing, Size
from .fallback import Fallback
from .pasting import drawn_pastes, paste
from .workers import end_if_forked


@dataclass(frozen=True)
class Composer:
    """Makes the images of a batch whose rows have parts of several samples.

    Args:
        drawing: Draws the parts.
        fallback: Decodes what the decoder refuses; it has the decoder, too.
        dtype: Of the images.
    """

    drawing: Drawing
    fallback: Fallback
    dtype: torch.dtype

    def images(
        self, request: Request, out: Images | None, threads: int
    ) -> tuple[Encoded, list[View], Decoded]:
        """Return the files of the rows themselves, the view with a row per part, and the images."""
        is_mosaic = self.drawing.crops(request.epoch)[0].parts is not None
        return (self._mosaics if is_mosaic else self._with_pastes)(request, out, threads)

    def _mosaics(
        self, request: Request, out: Images | None, threads: int
    ) -> tuple[Encoded, list[View], Decoded]:
        """Make images of several samples each, with a file, a box and a place per part."""
        drawing, split = self.drawing, self.drawing.split
        crop: Any = drawing.crops(request.epoch)[0].crop
        samples, uniforms = drawing.samples(request), drawing.uniforms(request, 0, crop)
        files = drawing.source.images(samples.ravel())
        known = image_sizes(files).numpy()
        sizes = self.fallback.sizes(files, known)
        flips = uniforms[:, 0] < split.pipelines[0].flip
        view, places, seen = drawn_parts(crop, samples, sizes, uniforms[:, 1:], flips, split.channels)
        request_of_parts = Request(request.epoch, samples.ravel()[seen])
        encoded = Encoded(request_of_parts, [files[number] for number in seen.tolist()], known[seen])
        end_if_forked()  # a source may be the user's own
        images = self._memory(out, view.size, len(samples))
        decoded = self.decode(encoded, view, [images], places, threads)
        return _of_rows(request, encoded, view, decoded)

    def _with_pastes(
        self, request: Request, out: Images | None, threads: int
    ) -> tuple[Encoded, list[View], Decoded]:
        """Make images into which objects of other samples are pasted."""
        drawing, count = self.drawing, len(request.ids)
        crop: Any = drawing.crops(request.epoch)[0].crop
        draws = drawing.uniforms(request, 0, crop)[:, 1:]
        rows = np.flatnonzero(crop.is_pasted(draws))
        ids = np.concatenate([request.ids, drawing.samples(request)[rows, 1]])
        files = drawing.source.images(ids)
        known = image_sizes(files).numpy()
        sizes = self.fallback.sizes(files, known)
        pastes = drawn_pastes(
            crop,
            drawing.views(request, sizes[:count])[0],
            drawing.partners(request, rows, ids[count:], sizes[count:]),
            rows,
            ids,
            drawing.split.targets,
            drawing.source,
            draws,
            partial(drawing.object_keys, request),
            threads,
        )
        end_if_forked()  # a source, a crop or a target may be the user's own
        view, seen, behind = pastes.view, pastes.samples, pastes.behind
        request_of_parts = Request(request.epoch, ids[seen])
        encoded = Encoded(request_of_parts, [files[number] for number in seen.tolist()], known[seen])
        images = self._memory(out, view.size, count)
        # Of this memory only what lies under the chosen objects is touched.
        others = empty_images((len(behind), *images.shape[1:]), images.dtype)
        places: Any = drawing.places([view], [0], request)
        places[:, 0] = view.batch_rows
        places[behind, 0] = count + np.arange(len(behind))
        places[behind, 1:5], places[behind, 5:7] = places[behind, 5:9], 0
        decoded = self.decode(encoded, view, [images, others], places, threads)
        paste(images, others, pastes)
        own, views, whole = _of_rows(request, encoded, view, decoded)
        whole.values = pastes.values
        return own, views, whole

    def _memory(self, out: Images | None, size: Size, count: int) -> Tensor:
        """Return the memory of the images that the decoder writes: ``out``, or its own."""
        if out is None:
            return empty_images((count, self.drawing.split.channels, *size), self.dtype)
        images: Tensor = by_size(out)[0]
        return images

    def decode(
        self, encoded: Encoded, view: View, outs: list[Tensor], places: Int32, threads: int
    ) -> Decoded:
        """Decode the parts of images, each to its place, of which the first number counts all of ``outs``."""
        _, status = self.fallback.resize(
            view.size, encoded.files, view.boxes, view.flips, of_sizes(outs), threads, places
        )
        decoded = Decoded(outs[:1], status)
        for part in status.numpy().nonzero()[0].tolist():
            number, alone = int(places[part, 0]), places[part : part + 1].copy()
            alone[:, 0] = 0
            out, place = (outs[0], number) if number < len(outs[0]) else (outs[1], number - len(outs[0]))
            image = out[place : place + 1]
            draw = partial(self.fallback.draw, view.parts().row(part), image, alone)
            self.fallback.decode(encoded, decoded, part, draw)
        return decoded


def _of_rows(
    request: Request, encoded: Encoded, view: View, decoded: Decoded
) -> tuple[Encoded, list[View], Decoded]:
    """Return what became of the rows of a request from what became of their parts."""
    first, rows = first_parts(view), view.batch_rows
    assert rows is not None
    own = Encoded(request, [encoded.files[part] for part in first.tolist()], encoded.sizes[first])
    whole = decoded.of_rows(rows, encoded.request.ids)
    whole.nbytes = sum(map(len, encoded.files))
    return own, [view], whole

"""Files that the native decoder refuses: Pillow decodes them, or the reason is found.

Such files are decoded one at a time: their memory is that of the whole image, not that of the crop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import PIL.Image
from torch import Tensor

from ..errors import Status
from ..ops.decode import MAX_PIXELS
from ..sampling.geometry import Int32, View
from ..sampling.sampler import Request
from ..shards import pillow
from .batch import Decoded, Encoded, Images, empty_images
from .drawing import Drawing
from .python_steps import is_for_pillow


class Resize(Protocol):
    """Decodes boxes of files: ``Fetcher.resize``."""

    def __call__(
        self,
        size: Sequence[int],
        files: list[Tensor],
        boxes: Int32,
        flips: npt.NDArray[np.bool_],
        out: Images | None = None,
        threads: int = 1,
        places: Int32 | None = None,
    ) -> tuple[Images, Tensor]:
        """Return the images, and a status for each."""
        ...


@dataclass(frozen=True)
class Fallback:
    """Makes the images of files that the decoder has refused.

    Args:
        drawing: Draws the views of images whose sizes are known only when Pillow has opened them.
        max_pixels: See ``LoaderConfig``.
        resize: The decoder, which makes crops of pixels in memory.
    """

    drawing: Drawing
    max_pixels: int | None
    resize: Resize

    def sizes(self, files: Sequence[Tensor], known: Int32) -> Int32:
        """Return sizes of images with those that Pillow decodes; (0, 0) for one that it does not either."""
        sizes = known.copy()
        for number in np.flatnonzero(known[:, 0] == 0).tolist():
            content, limit = files[number].numpy().tobytes(), self.max_pixels or pillow.MAX_PIXELS
            sizes[number] = pillow.upright_size(content, limit)
        return sizes

    def decode(
        self, encoded: Encoded, decoded: Decoded, row: int, draw: Callable[[PIL.Image.Image], None]
    ) -> None:
        """Decode a file that is not a JPEG by Pillow, and ``draw`` it; otherwise find the reason."""
        code, file, size = int(decoded.status[row]), encoded.files[row], encoded.sizes[row]
        if code == Status.TOO_LARGE:
            decoded.fail(row, code, pillow.too_large(size[0], size[1], self.max_pixels or MAX_PIXELS))
        else:
            decoded.fail(row, code, pillow.native_reason(code, file))
        if size[0]:
            return
        content = file.numpy().tobytes()
        if not is_for_pillow(code, content):
            return
        try:
            draw(pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS))
        except pillow.RefusedError as error:
            decoded.fail(row, int(error.status), error.reason)
            return
        decoded.status[row] = Status.OK
        decoded.non_jpeg = row if decoded.non_jpeg is None else decoded.non_jpeg

    def draw_views(
        self,
        request: Request,
        views: Sequence[View],
        row: int,
        outs: dict[int, Tensor],
        image: PIL.Image.Image,
    ) -> None:
        """Draw the views of a request of one, whose size is known now, to ``outs``, [1, C, H, W] by view."""
        results = [(out.shape[-2], out.shape[-1]) for _, out in sorted(outs.items())]
        drawn = self.drawing.views(request, np.array([[image.height, image.width]], np.int32), results)
        for number, (view, other) in enumerate(zip(views, drawn, strict=True)):
            places = self.drawing.places([other], [0], request, number)
            self.draw(other, outs[number], places, image)
            view.put(row, other)

    def draw_patches(
        self, request: Request, view: View, row: int, images: list[Tensor], image: PIL.Image.Image
    ) -> None:
        """Draw the view of a request of one, whose size is known now, and make its image again."""
        size = np.array([[image.height, image.width]], np.int32)
        (drawn,) = self.drawing.views(request, size, [view.size])
        before = images[row]
        shape = (1, before.shape[1], *drawn.all_places[0, 2:].tolist())
        images[row] = empty_images(shape, before.dtype)
        self.draw(drawn, [images[row]], None, image)
        view.put(row, drawn)

    def draw(self, view: View, out: Images, places: Int32 | None, image: PIL.Image.Image) -> None:
        """Write the part of a picture that a view of one row shows to ``out``, [1, C, H, W].

        A list of one such tensor has a size of its own.
        """
        if (image.height, image.width) != tuple(view.sizes[0].tolist()):  # of a part, drawn by its header
            raise pillow.RefusedError(Status.CORRUPT, f"it has {image.height} x {image.width} pixels")
        top, left, height, width = view.boxes[0].tolist()
        part = image.crop((left, top, left + width, top + height))
        is_gray = self.drawing.split.channels == 1
        ppm = pillow.as_tensor(pillow.ppm(pillow.to_rgb(part, gray=is_gray)))
        whole = np.array([[0, 0, height, width]], np.int32)
        self.resize(view.size, [ppm], whole, view.flips, out, places=places)

"""The steps of ``transform=`` behind the decoder: policies on the batch, the others per sample in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..augment.geometry import affine_and_steps, policy_moves
from ..augment.policies import drawn_programs, run_drawn
from ..errors import ShardError, Status
from ..ops.decode import MAX_PIXELS, decode_batch, image_sizes
from ..sampling.geometry import View
from ..sampling.rng import Float64, uniforms_of
from ..sampling.sampler import Request
from ..shards import pillow
from ..shards.marks import mark, mark_sample
from ..shards.source import Source, where_of
from ..transforms.generators import own_generators
from ..transforms.pipeline import Pipeline, Uncropped, without_targets
from ..transforms.pixels import PixelFormat, normalised
from ..transforms.results import Outcome, prepared, run_steps
from .batch import Decoded, Encoded, empty_images
from .carried import Carrier

# Streams of random numbers, beside those of loader.fetch; and the first one of the policies in a transform.
_TRANSFORM = 2
_POLICIES = 1 << 16
# The native decoder's judgement of a file that Pillow may decode: a PPM, but no file of pillow.NATIVE.
_OTHER_FORMAT = (Status.NOT_AN_IMAGE, Status.CORRUPT, Status.UNSUPPORTED)


def is_for_pillow(code: int, content: bytes) -> bool:
    """Whether Pillow may decode a file that the native decoder has refused with that status."""
    return code in _OTHER_FORMAT and not content.startswith(pillow.NATIVE)


@dataclass(frozen=True)
class PythonSteps:
    """Runs the steps of a view behind the decoder.

    Args:
        source: The samples, for messages.
        seed: Of the loader.
        decoding: Options of ``decode_batch`` for whole images.
        max_pixels: See ``LoaderConfig``.
        with_affine: Whether views get the affine of the policies, for targets.
        carrier: Carries targets through the steps that move pixels; None without.
    """

    source: Source
    seed: int
    decoding: Mapping[str, Any]
    max_pixels: int | None
    with_affine: bool = False
    carrier: Carrier | None = None

    def run(
        self,
        encoded: Encoded,
        number: int,
        outcome: Outcome,
        last: PixelFormat | None,
        *,
        crops: Tensor | None,
        out: Tensor,
        view: View,
        decoded: Decoded,
    ) -> View:
        """Run the policies and steps of one view on its crops, or on whole images; return what was drawn.

        Args:
            encoded: The samples.
            number: Of the view.
            outcome: What its steps return.
            last: The format to which their results are converted; None for none.
            crops: uint8 [B, 3, H, W]; None for whole images, which are decoded here.
            out: Memory for the results, [B, ...].
            view: What was drawn before; rows whose geometry only the steps know lose their box.
            decoded: Its status, reasons and ``non_jpeg`` are changed if whole images cannot be decoded.
        """
        request, pipeline = encoded.request, outcome.pipeline
        if crops is not None:
            crops, view = self._run_policies(request, number, pipeline, crops, view)
            if not pipeline.runs_python:
                if last is None:
                    out.copy_(crops)
                else:
                    normalised(crops, last, out)
                return view
            crops, before = prepared(pipeline, crops), view
            if self.carrier is not None and pipeline.moves_targets_in_python:
                view = replace(view, boxes=np.zeros_like(view.boxes), affine=None, steps=None, places=None)
            elif pipeline.moves_pixels_in_python:
                view.boxes[:] = 0
        results = out
        if last is not None:
            shape = (len(out), *outcome.shape)
            results = empty_images(shape, torch.uint8, pipeline.takes_planes)  # most steps keep that order
        draws = uniforms_of(request.numbered, self.seed, 1, _TRANSFORM, number)[:, 0]
        is_small = small_rows(pipeline, encoded) if crops is not None else None
        carries = crops is None or pipeline.moves_targets_in_python
        carried: list[Any] = [None] * len(encoded.files)
        if self.carrier is not None:
            decoded.carried[number] = carried
        codes = decoded.status.tolist()
        with own_generators() as seed_all:
            for row, (id, draw) in enumerate(zip(request.ids.tolist(), draws.tolist(), strict=True)):
                value = None if self.carrier is None or decoded.values is None else decoded.values[row]
                if codes[row] != Status.OK or isinstance(value, ShardError):
                    continue
                steps, where = pipeline.python, partial(where_of, self.source, id)
                mark_sample(self.source, id)
                if crops is not None and not (is_small is not None and is_small[row]):
                    image, start = crops[row], before.row(row) if carries else None
                else:
                    steps = steps if crops is None else pipeline.uncropped
                    whole = self.whole_image(encoded.files[row], pipeline, row, decoded)
                    if whole is None:
                        continue
                    image = prepared(pipeline, whole[None], is_whole=True)[0]
                    view.forget(row)
                    view.sizes[row] = decoded.wholes[row]
                    size = (image.shape[-2], image.shape[-1])
                    # Behind a crop that pads small images, a step may not take targets: then their place
                    # is not known, which is an error.
                    start = None if without_targets(steps) else View.whole(decoded.wholes[row], size)
                target = None
                if self.carrier is not None and value is not None and start is not None:
                    target = self.carrier.start(value, start, id)
                seed_all(int(draw * 2**53), steps)
                result = run_steps(steps, image, where, target)
                if self.carrier is not None and value is not None and target is not None:
                    carried[row] = self.carrier.finish(value, target)
                outcome.check(result, where)
                _copy(result, results[row])
        mark.set()
        if last is not None:
            normalised(results, last, out)
        return view

    def _run_policies(
        self, request: Request, number: int, pipeline: Pipeline, crops: Tensor, view: View
    ) -> tuple[Tensor, View]:
        """Return the crops after the policies of a view, and what was drawn for them."""
        draw = partial(self._policy_draws, request, number)
        programs = drawn_programs(pipeline.policies, draw, view.size)
        if self.with_affine:
            moves = policy_moves(pipeline.policies, programs, view.size)
            affine, steps = affine_and_steps(moves)
            view = view.then(affine, steps)
        return run_drawn(pipeline.policies, programs, crops), view

    def run_small(
        self,
        encoded: Encoded,
        number: int,
        pipeline: Pipeline,
        last: PixelFormat | None,
        *,
        out: Tensor,
        view: View,
        decoded: Decoded,
    ) -> None:
        """Replace the crops of images that are smaller than torchvision's crop by what its steps make.

        Args:
            encoded: The samples.
            number: Of the view.
            pipeline: Of the view, without steps in Python.
            last: The format of the results; None for uint8.
            out: The crops, [B, C, H, W].
            view: What was drawn for the crops; these rows lose their box.
            decoded: Its status and reasons are changed.
        """
        is_small = small_rows(pipeline, encoded)
        if is_small is None:
            return
        rows = (is_small & decoded.is_good).nonzero()[0]
        if not len(rows):
            return
        whole = replace(pipeline, python=pipeline.uncropped, policies=(), least=None)
        outcome = Outcome(whole, torch.uint8, (3, *view.size))
        results = empty_images((len(rows), *outcome.shape), out.dtype)
        part, done = encoded.rows(rows), Decoded.nothing(len(rows))
        done.values = None if decoded.values is None else [decoded.values[row] for row in rows]
        self.run(part, number, outcome, last, crops=None, out=results, view=view.rows(rows), decoded=done)
        out[torch.from_numpy(rows)] = results
        for place, row in enumerate(rows.tolist()):
            view.forget(row)
            if done.carried and decoded.values is not None:
                column = decoded.carried.setdefault(number, [None] * len(decoded.values))
                column[row] = done.carried[number][place]
            decoded.fail(row, int(done.status[place]), done.reasons.get(place, ""))

    def whole_image(self, file: Tensor, pipeline: Pipeline, row: int, decoded: Decoded) -> Tensor | None:
        """Decode a whole image, uint8 [3, H, W]; None, and its status in ``decoded``, if that fails."""
        limit = self.max_pixels or MAX_PIXELS
        target_of = (pipeline.crop if isinstance(pipeline.crop, Uncropped) else Uncropped()).target
        height, width = image_sizes([file])[0].tolist()
        size = target_of(height, width) if height else (1, 1)
        if max(height * width, size[0] * size[1]) > limit:
            decoded.fail(row, Status.TOO_LARGE, pillow.too_large(height, width, limit))
            return None
        image, code = self._resized(file, (height, width), size)
        decoded.wholes[row] = height, width
        content = pillow.JPEG if height else file.numpy().tobytes()
        decoded.fail(row, code, pillow.native_reason(code, content))
        if is_for_pillow(code, content):
            try:
                upright = pillow.open_upright(content, self.max_pixels or pillow.MAX_PIXELS)
                whole = pillow.to_rgb(upright)
            except pillow.RefusedError as error:
                decoded.fail(row, int(error.status), error.reason)
                return None
            ppm = pillow.as_tensor(pillow.ppm(whole))
            image, code = self._resized(
                ppm, (whole.height, whole.width), target_of(whole.height, whole.width)
            )
            decoded.fail(row, code)
            decoded.wholes[row] = whole.height, whole.width
            decoded.non_jpeg = row if decoded.non_jpeg is None else decoded.non_jpeg
        return image if code == Status.OK else None

    def _resized(self, file: Tensor, source: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, int]:
        box = torch.tensor([[0, 0, *source]], dtype=torch.int32, device="cpu")
        images, status = decode_batch([file], box, size, None, threads=1, **self.decoding)
        return images[0], int(status[0])

    def _policy_draws(self, request: Request, view: int, number: int, count: int) -> Float64:
        return uniforms_of(request.numbered, self.seed, count, _POLICIES + number, view)


def small_rows(pipeline: Pipeline, encoded: Encoded) -> Any:
    """Return which images are smaller than torchvision's crop, or of unknown size: bool [B], or None."""
    return None if pipeline.least is None else (encoded.sizes < pipeline.least).any(axis=1)


def may_carry(pipeline: Pipeline, encoded: Encoded) -> bool:
    """Whether steps in Python move the targets of some of these images."""
    is_small = small_rows(pipeline, encoded)
    return pipeline.moves_targets_in_python or (is_small is not None and bool(is_small.any()))


def _copy(image: Tensor, out: Tensor) -> None:
    """Copy the result of a transform; torch takes three times as long for planes to channels_last order."""
    is_planar = image.dtype == torch.uint8 and image.ndim == 3 and image.is_contiguous() and len(image) == 3
    if is_planar and not out.is_contiguous():
        target = out.numpy()
        for channel, plane in enumerate(image.numpy()):
            target[channel] = plane
    else:
        out.copy_(image)

"""The operators' fake kernels: shapes, types and strides without data, for tracing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.library.register_fake("tarpeg::decode_crop")  # type: ignore[untyped-decorator]
def _fake_decode_crop(jpeg: Tensor, top: int, left: int, height: int, width: int, max_pixels: int) -> Tensor:
    return jpeg.new_empty((height, width, 3), dtype=torch.uint8).permute(2, 0, 1)


@torch.library.register_fake("tarpeg::tile_jpeg")  # type: ignore[untyped-decorator]
def _fake_tile_jpeg(jpeg: Tensor, tile: int, max_pixels: int) -> Tensor:
    return jpeg.new_empty((torch.library.get_ctx().new_dynamic_size(),))


@torch.library.register_fake("tarpeg::image_sizes")  # type: ignore[untyped-decorator]
def _fake_image_sizes(jpegs: Sequence[Tensor]) -> Tensor:
    return jpegs[0].new_empty((len(jpegs), 2), dtype=torch.int32)


@torch.library.register_fake("tarpeg::decode_batch")  # type: ignore[untyped-decorator]
def _fake_decode_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    height: int,
    width: int,
    flip: Tensor | None,
    interpolation: str,
    antialias: bool,
    exact: bool,
    max_pixels: int,
    threads: int,
) -> tuple[Tensor, Tensor]:
    images = boxes.new_empty((len(jpegs), height, width, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    return images, boxes.new_empty((len(jpegs),), dtype=torch.int32)


@torch.library.register_fake("tarpeg::decode_batch_out")  # type: ignore[untyped-decorator]
def _fake_decode_batch_out(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    flip: Tensor | None,
    interpolation: str,
    antialias: bool,
    exact: bool,
    max_pixels: int,
    scale_shift: Tensor | None,
    out: Tensor,
    threads: int,
) -> Tensor:
    return boxes.new_empty((len(jpegs),), dtype=torch.int32)


@torch.library.register_fake("tarpeg::warp_affine")  # type: ignore[untyped-decorator]
def _fake_warp_affine(
    images: Tensor,
    matrices: Tensor,
    fill: Sequence[float],
    nearest: bool,
    inverse: bool,
    fresh: bool,
    out: Tensor,
) -> None:
    return None


@torch.library.register_fake("tarpeg::augment_batch")  # type: ignore[untyped-decorator]
def _fake_augment_batch(
    images: Tensor,
    numbers: Tensor,
    parts: int,
    boxes: Tensor | None,
    mask: Tensor | None,
    constants: Sequence[float],
    fresh: bool,
    out: Tensor,
) -> None:
    return None

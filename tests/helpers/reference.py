"""A slow, readable twin of every operator, on Pillow and torch: the oracle of the tests."""

from __future__ import annotations

import functools
import io
import itertools
import math
import operator
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image, ImageOps
from tarpeg.ops import matrices as mx
from torch import Tensor
from torchvision.transforms.v2 import functional
from torchvision.transforms.v2.functional import normalize
from torchvision.transforms.v2.functional._geometry import _affine_grid, _apply_grid_transform


def decode(jpeg: Tensor) -> Tensor:
    """Decode the whole image as Pillow shows it: upright, RGB. uint8 ``[n]`` -> uint8 ``[3, H, W]``."""
    with Image.open(io.BytesIO(bytes(jpeg.numpy()))) as image:
        if image.mode == "I;16":  # Pillow would clip it
            image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
        upright = ImageOps.exif_transpose(image).convert("RGB")
    return torch.from_numpy(np.array(upright)).permute(2, 0, 1)


def decode_gray(jpeg: Tensor) -> Tensor:
    """Decode the whole image to gray as Pillow does, from the luma plane if there is one: [1, H, W]."""
    with Image.open(io.BytesIO(bytes(jpeg.numpy()))) as image:
        image.draft("L", image.size)
        if image.mode == "I;16":  # Pillow would clip it
            image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
        upright = ImageOps.exif_transpose(image).convert("L")
    return torch.from_numpy(np.array(upright))[None]


def decode_crop(jpeg: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Twin of ``tarpeg.decode_crop``: decode everything, then crop."""
    return decode(jpeg)[:, top : top + height, left : left + width]


def resize(image: Tensor, size: tuple[int, int], interpolation: str, antialias: bool) -> Tensor:
    """Do what torchvision v2's resize does to a uint8 image: ``interpolate``, in integers; or Pillow's."""
    if interpolation in ("lanczos", "box", "area"):
        method = Image.Resampling.LANCZOS if interpolation == "lanczos" else Image.Resampling.BOX
        channels = [Image.fromarray(channel.contiguous().numpy()) for channel in image]
        (height, width), first = image.shape[1:], (size[1], image.shape[1])
        if height - size[0] > max(0, 2 * (width - size[1])):  # the order of Pillow 13
            first = (width, size[0])
        resized = [channel.resize(first, method).resize(size[::-1], method) for channel in channels]
        return torch.stack([torch.from_numpy(np.array(channel)) for channel in resized])
    antialias = antialias and interpolation in ("bilinear", "bicubic")
    return torch.nn.functional.interpolate(image[None], size, mode=interpolation, antialias=antialias)[0]


def resize_planes(
    planes: Sequence[np.ndarray],
    times: Sequence[tuple[int, int]],
    box: Sequence[int],
    size: tuple[int, int],
) -> Tensor:
    """Twin of ``fidelity="fast"``, bilinear, antialiased, of a box that is not reduced: Y, Cb and Cr apart.

    ``planes``: uint8 [h, w] each; ``times``: how many rows and columns of pixels a sample of each has.
    """
    top, left, height, width = box
    lines = []
    for plane, (down, across) in zip(planes, times, strict=True):
        is_fancy = plane.shape[1] > 2 and across == 2 and down <= 2  # as libjpeg upsamples
        values = plane.astype(np.int64) - 128
        mixes_down = down == 2 and (is_fancy or across == 1)
        values = _resampled(values, (top, height, size[0]), down, mixes_down, 8)
        lines.append(_resampled(values.T, (left, width, size[1]), across, is_fancy, 14).T)
    y, cb, cr = ((line + 16384) >> 15 for line in lines)  # 7 fractional bits

    def part(values: np.ndarray, factor: float) -> np.ndarray:
        return (values * round(factor * 32768) + 16384) >> 15

    green = part(cb, -0.344136) + part(cr, -0.714136)
    rgb = np.stack((y + cr + part(cr, 0.402), y + green, y + cb + part(cb, 0.772)))
    return torch.from_numpy((((rgb + 64) >> 7) + 128).clip(0, 255).astype(np.uint8))


def _resampled(
    samples: np.ndarray, axis: tuple[int, int, int], times: int, mixes: bool, bits: int
) -> np.ndarray:
    """Weighted sums of samples [n, ...], for an axis of (first pixel, pixels, outputs): [outputs, ...]."""
    begin, pixels, outputs = axis
    scale, last, rows = pixels / outputs, len(samples) - 1, []
    support = max(1.0, scale)
    for i in range(outputs):
        center = scale * (i + 0.5)
        first, end = max(int(center - support + 0.5), 0), min(int(center + support + 0.5), pixels)
        triangle = [max(0.0, 1 - abs((j - center + 0.5) * (1 / support))) for j in range(first, end)]
        total = functools.reduce(operator.add, triangle)  # from Python 3.12 on, sum() rounds only once
        shares = {begin + first + j: weight / total for j, weight in enumerate(triangle)}
        of_sample: dict[int, float] = {}
        if mixes:
            for k in range(max(0, (begin + first - 1) // 2), min(last, (begin + end) // 2) + 1):
                own, next_to = ([shares.get(2 * k + j, 0.0) for j in pair] for pair in ((0, 1), (-1, 2)))
                of_sample[k] = 0.75 * sum(own) + 0.25 * sum(next_to)
            of_sample[0] = of_sample.get(0, 0.0) + 0.25 * shares.get(0, 0.0)
            of_sample[last] = of_sample.get(last, 0.0) + 0.25 * shares.get(2 * last + 1, 0.0)
        else:
            for pixel, share in shares.items():
                of_sample[pixel // times] = of_sample.get(pixel // times, 0.0) + share
        total, done, row = 0.0, 0, np.zeros_like(samples[0])
        for k, share in sorted(of_sample.items()):
            total += share
            row += samples[k] * (round(total * (1 << bits)) - done)
            done = round(total * (1 << bits))
        assert done == 1 << bits
        rows.append(row)
    return np.stack(rows)


def decode_batch(
    jpegs: Sequence[Tensor],
    boxes: Tensor,
    size: tuple[int, int],
    flip: Tensor | None = None,
    *,
    interpolation: str = "bilinear",
    antialias: bool = True,
) -> Tensor:
    """Twin of ``tarpeg.decode_batch`` for images that decode: crop, resize, flip. uint8 ``[B, 3, H, W]``."""
    images = []
    for index, jpeg in enumerate(jpegs):
        top, left, height, width = boxes[index].tolist()
        image = resize(decode_crop(jpeg, top, left, height, width), size, interpolation, antialias)
        images.append(image.flip(-1) if flip is not None and bool(flip[index]) else image)
    return torch.stack(images) if images else torch.empty((0, 3, *size), dtype=torch.uint8)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Turn uint8 ``[B, 3, H, W]`` into float64 (value / 255 - mean) / std."""
    return normalize(images.double() / 255, list(mean), list(std))


def warp_affine(
    images: Tensor,
    matrices: Tensor,
    size: tuple[int, int],
    interpolation: str = "bilinear",
    fill: float | Sequence[float] = 0.0,
    inverse: bool = False,
) -> Tensor:
    """Twin of ``tarpeg.warp_affine`` in float64, not rounded: ``[B, C, height, width]``."""
    channels = images.shape[1]
    levels = torch.as_tensor(fill, dtype=torch.float64).expand(channels)
    warped = torch.empty((len(images), channels, *size), dtype=torch.float64)
    for index, image in enumerate(images.double()):
        square = torch.cat((matrices[index].double(), torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)))
        back = square if inverse else torch.linalg.inv(square)
        y, x = torch.meshgrid(torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
        place = back[:2] @ torch.stack((x.flatten(), y.flatten(), torch.ones(x.numel()))).double()
        warped[index] = _sample(image, place[0], place[1], interpolation, levels).reshape(channels, *size)
    return warped


def inverse(matrix: Tensor) -> Tensor:
    """Invert affine matrices ``[..., 2, 3]``."""
    last = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand(*matrix.shape[:-2], 1, 3)
    return torch.linalg.inv(torch.cat((matrix.double(), last), -2))[..., :2, :]


def theta(matrix: Tensor, source: tuple[int, int], target: tuple[int, int]) -> Tensor:
    """Return the argument of ``affine_grid(align_corners=False)`` for a warp; sizes: (height, width)."""

    def to_pixels(size: tuple[int, int]) -> Tensor:  # from -1..1
        height, width = size
        return mx.compose(mx.scale(width / 2, height / 2), mx.translation((width - 1) / 2, (height - 1) / 2))

    return mx.compose(to_pixels(target), inverse(matrix), inverse(to_pixels(source)))


def _sample(image: Tensor, x: Tensor, y: Tensor, interpolation: str, fill: Tensor) -> Tensor:
    """Read ``[C, H, W]`` at positions ``[n]``: ``[C, n]``."""

    def pixels(x: Tensor, y: Tensor) -> Tensor:
        height, width = image.shape[1:]
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
        found = fill[:, None].expand(-1, len(x)).clone()
        found[:, inside] = image[:, y[inside].long(), x[inside].long()]
        return found

    if interpolation == "nearest":
        return pixels((x + 0.5).floor(), (y + 0.5).floor())
    left, top = x.floor(), y.floor()
    right, below = x - left, y - top
    upper = pixels(left, top) * (1 - right) + pixels(left + 1, top) * right
    lower = pixels(left, top + 1) * (1 - right) + pixels(left + 1, top + 1) * right
    return upper * (1 - below) + lower * below


def augment_batch(
    images: Tensor,
    *,
    brightness: Tensor | None = None,
    contrast: Tensor | None = None,
    saturation: Tensor | None = None,
    hue: Tensor | None = None,
    flip: Tensor | None = None,
    matrix: Tensor | None = None,
    size: tuple[int, int] | None = None,
    colour_matrix: Tensor | None = None,
    erase_boxes: Tensor | None = None,
    mask: Tensor | None = None,
    fill: float | Sequence[float] = 0.0,
    mean: Sequence[float] = (0.0, 0.0, 0.0),
    std: Sequence[float] = (1.0, 1.0, 1.0),
) -> Tensor:
    """Twin of ``tarpeg.augment_batch``, in float64 after the colours: ``[B, 3, height, width]``.

    Numbers are given per image.
    """
    count = len(images)
    levels = torch.as_tensor(fill, dtype=torch.float64).expand(3).reshape(3, 1, 1)
    factors = {"brightness": brightness, "contrast": contrast, "saturation": saturation, "hue": hue}
    for name, given in factors.items():
        if given is not None and images.numel():
            adjust = getattr(functional, f"adjust_{name}")
            images = torch.stack([adjust(one, x) for one, x in zip(images, given.tolist(), strict=True)])
    values = images.double()
    if flip is not None:
        values = torch.where(flip.reshape(-1, 1, 1, 1), values.flip(-1), values)
    if matrix is not None or size is not None:
        moved = torch.eye(2, 3).expand(count, 2, 3) if matrix is None else matrix
        height, width = size or (values.shape[2], values.shape[3])
        values = warp_affine(values, moved, (height, width), fill=levels.flatten().tolist())
    if colour_matrix is not None:
        rows = colour_matrix.double()
        values = torch.einsum("bij,bjyx->biyx", rows[:, :, :3], values) + rows[:, :, 3, None, None]
    for index, boxes in enumerate([] if erase_boxes is None else erase_boxes.tolist()):
        for top, left, height, width in boxes:
            values[index, :, top : top + height, left : left + width] = levels
    if mask is not None:
        down, across = (
            torch.arange(side) * cells // side
            for side, cells in zip(values.shape[2:], mask.shape[1:], strict=True)
        )
        values = torch.where(mask[:, down][:, :, across][:, None], levels, values)
    return normalise(values, mean, std)


def operation(
    image: Tensor,
    op: int,
    numbers: Sequence[float],
    nearest: bool = True,
    fill: float | Sequence[float] | None = None,
) -> Tensor:
    """One operation of ``run_programs`` by torchvision: uint8 ``[3, H, W]`` to the same."""
    first, second = numbers[:2]
    from tarpeg.ops.programs import Op  # loads the native library

    match Op(op):
        case Op.IDENTITY:
            return image
        case Op.FLIP:
            return functional.horizontal_flip(image)
        case Op.AFFINE:
            height, width = image.shape[1:]
            theta = torch.tensor(list(numbers)).reshape(1, 2, 3)
            grid = _affine_grid(theta, width, height, width, height)
            fills = [float(fill)] if isinstance(fill, (int, float)) else fill
            return _apply_grid_transform(image, grid, "nearest" if nearest else "bilinear", fills)
        case Op.BRIGHTNESS:
            return functional.adjust_brightness(image, first)
        case Op.CONTRAST:
            return functional.adjust_contrast(image, first)
        case Op.SATURATION:
            return functional.adjust_saturation(image, first)
        case Op.HUE:
            return functional.adjust_hue(image, first)
        case Op.SHARPNESS:
            return functional.adjust_sharpness(image, first)
        case Op.POSTERIZE:
            return functional.posterize(image, int(first))
        case Op.SOLARIZE:
            return image if first > 255 else functional.solarize(image, first)
        case Op.AUTOCONTRAST:
            return functional.autocontrast(image)
        case Op.EQUALIZE:
            return functional.equalize(image)
        case Op.INVERT:
            return functional.invert(image)
        case Op.GRAYSCALE:
            return functional.rgb_to_grayscale(image, 3)
        case Op.BLUR:
            return functional.gaussian_blur(image, [int(second)] * 2, [first] * 2)
        case Op.SOLARIZE_ADD:  # timm's; torchvision has none
            return torch.where(image < second, (image + first).clamp(0, 255).to(torch.uint8), image)


def run_programs(
    images: Tensor,
    ops: Tensor,
    values: Tensor,
    weights: Tensor | None = None,
    *,
    nearest: bool = True,
    fill: float | Sequence[float] | None = None,
) -> Tensor:
    """Twin of ``tarpeg.run_programs``; mixtures as in torchvision's AugMix."""
    results = []
    for index, image in enumerate(images):
        mixed = None if weights is None else weights[index, 0] * image
        for chain, steps in enumerate(ops[index].tolist()):
            result = image
            for op, numbers in zip(steps, values[index, chain].tolist(), strict=True):
                result = operation(result, op, numbers, nearest, fill)
            mixed = result if mixed is None else mixed + weights[index, chain + 1] * result
        results.append(mixed.to(torch.uint8))
    return torch.stack(results)


def read_mask(
    content: bytes, box: Sequence[int], size: tuple[int, int], is_flipped: bool, centres: bool
) -> np.ndarray:
    """Twin of ``tarpeg.ops.masks.read_masks`` for one mask: Pillow decodes it whole."""
    with Image.open(io.BytesIO(content)) as image:
        values = np.asarray(image)
    places = []
    for begin, source, result in zip(box[:2], box[2:], size, strict=True):
        steps = torch.arange(result)
        if centres:
            found = (2 * steps + 1) * source // (2 * result)
        else:  # as torch computes it
            found = torch.floor(steps.float() * (torch.tensor(float(source)) / result)).long()
        places.append(begin + found.clamp(max=source - 1).numpy())
    cut = values[places[0]][:, places[1]]
    return cut[:, ::-1] if is_flipped else cut


def mask_of_polygon(polygon: Sequence[float], height: int, width: int) -> np.ndarray:
    """The pixels of a polygon x, y, x, y, ... as ``rleFrPoly`` of pycocotools finds them, step by step."""
    corners = [(int(5 * x + 0.5), int(5 * y + 0.5)) for x, y in zip(polygon[::2], polygon[1::2], strict=True)]
    points = []
    for (xs, ys), (xe, ye) in zip(corners, corners[1:] + corners[:1], strict=True):
        dx, dy = abs(xe - xs), abs(ye - ys)
        flip = (dx >= dy and xs > xe) or (dx < dy and ys > ye)
        if flip:
            xs, xe, ys, ye = xe, xs, ye, ys
        for d in range(max(dx, dy) + 1):
            t = max(dx, dy) - d if flip else d
            if dx >= dy:
                points.append((xs + t, int(ys + ((ye - ys) / dx if dx else 0) * t + 0.5)))
            else:
                points.append((int(xs + (xe - xs) / dy * t + 0.5), ys + t))
    mask = np.zeros(height * width, bool)
    for (u, v), (u2, v2) in itertools.pairwise(points):
        x = ((u2 if u2 < u else u2 - 1) + 0.5) / 5 - 0.5
        if u2 == u or x != math.floor(x) or x < 0 or x > width - 1:
            continue
        y = math.ceil(min(max((min(v, v2) + 0.5) / 5 - 0.5, 0), height))
        mask[int(x) * height + y :] ^= True
    return mask.reshape(width, height).T

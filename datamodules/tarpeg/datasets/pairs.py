"""A folder of images and a folder of masks with the same names."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import ShardError, check_integer
from ..shards.packing import Listing
from ..shards.walk import below, images_below
from .annotated import AnnotatedImage, BrokenError, Keys, count, folder_of, mask_member, shuffled


@dataclass(frozen=True)
class MaskFolder:
    """Images of a folder and their semantic masks, PNGs of another, to pack by ``make_shards``.

    A sample has the image and the mask as they are, the mask as ``png``, or as ``seg.png`` if not all images
    are JPEGs. The mask of ``images/a/1.jpg`` is ``masks/a/1.png``. A mask has the size of the upright image.
    An image whose mask is missing or has another size is left out, as broken images are; ``make_shards``
    counts and lists them.

    Args:
        images: Folder of the images; those below are found, too.
        masks: Folder of the masks; it may be the same one, with a ``suffix``.
        suffix: End of the masks' names, before ".png".
        image_suffix: End of the images' names, which the masks do not have: for Cityscapes
            ``image_suffix="_leftImg8bit", suffix="_gtFine_labelIds"``.
        seed: Seed of the order.

    Raises:
        ValueError: When constructed, for a value out of range.

    Example:
        >>> from PIL import Image
        >>> for part in ("images", "masks"):
        ...     (tmp / part).mkdir()
        >>> Image.new("RGB", (60, 40)).save(tmp / "images" / "a.jpg")
        >>> Image.new("L", (60, 40), 3).save(tmp / "masks" / "a_mask.png")
        >>> source = tarpeg.MaskFolder(tmp / "images", tmp / "masks", suffix="_mask")
        >>> tarpeg.make_shards(tmp / "shards", source, workers=0).samples
        1
        >>> crop = tarpeg.RandomResizedCrop(32)
        >>> split = tarpeg.Split(tmp / "shards" / "train-*.tar", crop, targets=tarpeg.Masks("png"))
    """

    images: str
    masks: str
    suffix: str = ""
    image_suffix: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("images", "masks"):
            object.__setattr__(self, name, str(getattr(self, name)))
        check_integer("seed", self.seed)

    def place(self) -> str:
        """Path of the folder of images."""
        return self.images

    def listing(self) -> Listing:
        """List the images and their masks; raises ShardError."""
        root, masks = folder_of("images", self.images), folder_of("masks", self.masks)
        names = [os.path.relpath(path, root) for path in images_below(root)]
        inside = os.path.relpath(masks, root)
        if inside != "." and not inside.startswith(".."):  # masks are no images
            names = [name for name in names if not name.startswith(f"{inside}{os.sep}")]
        if root.samefile(masks):
            if not self.suffix:
                raise ShardError(
                    f"images={self.images!r} and masks={self.masks!r} are one folder, in which a PNG is "
                    'its own mask: give suffix=, the end of the names of masks, such as "_mask"'
                )
            names = [name for name in names if not Path(name).stem.endswith(self.suffix)]
        pngs = [os.path.relpath(path, masks) for path in below(masks, ("png",))]
        known = {Path(png).with_suffix(""): png for png in pngs}
        found = {name: self._mask(name, known) for name in names}
        twice = [mask for mask, times in Counter(found.values()).most_common(1) if times > 1]
        if twice:
            both = [name for name, mask in found.items() if mask == twice[0]]
            raise ShardError(f"images={self.images!r}: {' and '.join(both)} have one mask, {twice[0]}")
        member, broken = mask_member(names), []
        keys, images = Keys(str(root)), list[AnnotatedImage]()
        own = {*found.values()}
        missing, others = own - {*pngs}, dict[Path, Path]()
        if missing:
            others = {path.with_suffix(""): path for path in map(Path, images_below(masks))}
        for name, mask in found.items():
            if not Path(name).stem.endswith(self.image_suffix):
                broken.append(f"{root / name}: its name does not end with image_suffix={self.image_suffix!r}")
                continue
            other = others.get((masks / mask).with_suffix("")) if mask in missing else None
            if other is not None:
                broken.append(f"{other}: masks are PNGs. Convert it to one, with the same numbers of classes")
                continue
            try:
                images.append(keys.image(name, mask=str(masks / mask), mask_member=member))
            except BrokenError as error:
                broken.append(str(error))
        alone = [str(masks / png) for png in pngs if png not in own and Path(png).stem.endswith(self.suffix)]
        notes = count("masks without an image", alone)
        return Listing(shuffled(images, self.seed), None, broken, notes)

    def _mask(self, name: str, known: Mapping[Path, str]) -> str:
        """Return the path of the mask of an image below the folder of masks, as are those of ``known``."""
        path = Path(name)
        mask = path.with_name(f"{path.stem.removesuffix(self.image_suffix)}{self.suffix}.png")
        return known.get(mask.with_suffix(""), str(mask))

"""torchvision's reference loop for detectors, fed by tarpeg; only the loaders are others.

``train_one_epoch`` and ``evaluate`` are those of ``engine.py`` in torchvision's folder references/detection,
which is not part of its wheels, unchanged. The evaluation needs pycocotools. To try it:

    git clone --depth 1 https://github.com/pytorch/vision
    tarpeg make-shards source=scenes out=scenes samples=500
    tarpeg make-shards source=scenes out=scenes samples=100 prefix=val
    export REFERENCES=vision/references/detection
    python examples/torchvision_detection.py $REFERENCES 'scenes/train-*.tar' 'scenes/val-*.tar'

Of COCO, pack the shards to train with by ``make-shards source=coco crowds=false``, as references/detection.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
import torchvision


class WithDataset:
    """A loader with the ``dataset`` of which ``evaluate`` makes COCO's annotations.

    It has targets and sizes of images, which are collected in an epoch of the loader.
    """

    def __init__(self, loader: tarpeg.Loader) -> None:
        self.loader = loader
        self.dataset = [
            (torch.empty(image.shape, device="meta"), target)
            for images, targets in loader
            for image, target in zip(images, targets, strict=True)
        ]

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the loader."""
        return iter(self.loader)


def main(references: str, train: str, val: str, classes: int = 5, epochs: int = 2, size: int = 320) -> None:
    """Train a detector and evaluate it after each epoch.

    Args:
        references: Folder references/detection of a clone of torchvision.
        train: Shards to train with.
        val: Shards to evaluate with.
        classes: Number of classes, with the background.
        epochs: Number of epochs.
        size: Side of the images.
    """
    sys.path.insert(0, references)
    from engine import evaluate, train_one_epoch  # torchvision's

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plain = tarpeg.Augment(mean=(0, 0, 0), std=(1, 1, 1))  # values in 0..1: the model normalises
    boxes = tarpeg.Boxes("json:objects", min_size=4, min_visibility=0.25)
    crop = tarpeg.RandomResizedCrop(size, scale=(0.5, 1.0))
    make_loader = partial(tarpeg.Loader, batch_size=4, augment=plain, device=device)
    data_loader = make_loader(tarpeg.Split(train, crop, flip=0.5, targets=boxes))
    whole = tarpeg.Split(val, tarpeg.LetterBox(size), targets=tarpeg.Boxes("json:objects"))
    data_loader_test = WithDataset(make_loader(whole, training=False))

    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=classes
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        train_one_epoch(model, optimizer, data_loader, device, epoch, print_freq=20)
        evaluate(model, data_loader_test, device=device)
    data_loader.close()
    data_loader_test.loader.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:5]))

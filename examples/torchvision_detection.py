"""torchvision's reference loop for detectors, fed by tarpeg: torchvision_detection.py SHARDS [CLASSES].

``train_one_epoch`` is that of ``references/detection/engine.py`` of torchvision, without its printing. Only
the loader is another. To try it: tarpeg make-shards source=scenes out=scenes, and then scenes/train-*.tar.
"""

import math
import os
import sys

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
import torchvision


def train_one_epoch(model, optimizer, data_loader, device, epoch, scaler=None):
    """Train one epoch; return the mean loss."""
    model.train()
    lr_scheduler = None
    if epoch == 0:
        warmup_factor = 1.0 / 1000
        warmup_iters = min(1000, len(data_loader) - 1)
        lr_scheduler = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=warmup_factor, total_iters=warmup_iters
        )
    seen = []
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)  # noqa: C400
        targets = [
            {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in t.items()} for t in targets
        ]
        with torch.amp.autocast("cuda", enabled=scaler is not None):
            loss_dict = model(images, targets)
            losses = sum(loss for loss in loss_dict.values())
        loss_value = losses.item()
        if not math.isfinite(loss_value):
            print(f"Loss is {loss_value}, stopping training")
            print(loss_dict)
            sys.exit(1)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(losses).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            losses.backward()
            optimizer.step()
        if lr_scheduler is not None:
            lr_scheduler.step()
        seen.append(loss_value)
    return sum(seen) / len(seen)


def main(shards: str, classes: int = 5, epochs: int = 2, size: int = 320, batch_size: int = 4) -> None:
    """Train a detector and print its loss after each epoch; classes count the background."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    split = tarpeg.Split(
        shards,
        tarpeg.RandomResizedCrop(size, scale=(0.5, 1.0)),
        flip=0.5,
        targets=tarpeg.Boxes("json:objects", min_size=4, min_visibility=0.25),
    )
    plain = tarpeg.Augment(mean=(0, 0, 0), std=(1, 1, 1))  # values in 0..1: the model normalises
    data_loader = tarpeg.Loader(split, batch_size=batch_size, augment=plain, device=device)
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=classes
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
    for epoch in range(epochs):
        loss = train_one_epoch(model, optimizer, data_loader, device, epoch)
        print(f"epoch {epoch}: loss {loss:.3f}, {len(data_loader)} batches")
    data_loader.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))

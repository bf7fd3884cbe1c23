"""tarpeg in a loop of one's own, without a Trainer: python plain_pytorch.py TRAIN_SHARDS VAL_SHARDS."""

import os
import sys

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
from torch import nn


def main(train: str, val: str, epochs: int = 2) -> None:
    """Train a small network and print its accuracy after each epoch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = {"batch_size": 32, "device": device, "seed": 0}
    train_loader = tarpeg.Loader(
        tarpeg.Split(train, tarpeg.RandomResizedCrop(64), flip=0.5),
        augment=tarpeg.Augment(color=tarpeg.ColorJitter(brightness=0.2)),
        **settings,
    )
    val_loader = tarpeg.Loader(
        tarpeg.Split(val, tarpeg.CenterCrop(64, shorter=72)),
        training=False,  # in order, and only normalised
        augment=tarpeg.Augment(),
        **settings,
    )
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    net = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(epochs):  # each turn through a loader is its next epoch
        for images, labels in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        right = total = 0
        for images, labels in val_loader:
            with torch.no_grad():
                right += int((net(images).argmax(1) == labels).sum())
            total += len(labels)
        print(f"epoch {epoch}: accuracy {right / total:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

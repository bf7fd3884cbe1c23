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
    data = tarpeg.ShardDataModule(
        train=tarpeg.Split(train, tarpeg.RandomResizedCrop(64), flip=0.5),
        val=tarpeg.Split(val, tarpeg.CenterCrop(64, shorter=72)),
        batch_size=32,
        seed=0,
        augment=tarpeg.Augment(color=tarpeg.Color(brightness=0.2)),
    )
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    net = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    train_loader, val_loader = data.train_dataloader(), data.val_dataloader()
    for epoch in range(epochs):  # each turn through a loader is its next epoch
        for images, labels in data.augmented(train_loader, device):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        right = total = 0
        for images, labels in data.augmented(
            val_loader, device
        ):  # only normalised: it is not the train split
            with torch.no_grad():
                right += int((net(images).argmax(1) == labels).sum())
            total += len(labels)
        print(f"epoch {epoch}: accuracy {right / total:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

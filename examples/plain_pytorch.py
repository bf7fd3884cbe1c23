"""tarpeg in a loop of one's own, without a Trainer: python plain_pytorch.py TRAIN_SHARDS VAL_SHARDS.

On several GPUs: torchrun --nproc-per-node 2 plain_pytorch.py TRAIN_SHARDS VAL_SHARDS.
"""

import os
import sys
from functools import partial

# OpenMP's threads spin while they wait, on cores that worker processes need; before torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import tarpeg
import torch
from torch import nn


def main(train: str, val: str, epochs: int = 2) -> None:
    """Train a small network and print its accuracy after each epoch."""
    is_distributed = "RANK" in os.environ  # by torchrun
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if is_distributed:  # before the loaders are made: each of them is of one rank
        if device.type == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        torch.distributed.init_process_group()
    make_loader = partial(tarpeg.Loader, batch_size=32, device=device, seed=0)
    train_loader = make_loader(
        tarpeg.Split(train, tarpeg.RandomResizedCrop(64), flip=0.5),
        augment=tarpeg.Augment(color=tarpeg.ColorJitter(brightness=0.2)),
    )
    val_loader = make_loader(
        tarpeg.Split(val, tarpeg.CenterCrop(64, shorter=72)),
        training=False,  # in order, and only normalised
        augment=tarpeg.Augment(),
    )
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
    net: nn.Module = nn.Sequential(nn.Conv2d(3, 32, 7, stride=4), *head).to(device)
    if is_distributed:
        net = nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(epochs):  # each turn through a loader is its next epoch
        for images, labels in train_loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        counts = torch.zeros(2, device=device)  # right ones, and all
        for images, labels in val_loader:
            with torch.no_grad():
                right = (net(images).argmax(1) == labels).sum()
            counts += torch.stack([right, torch.tensor(len(labels), device=device)])
        if is_distributed:
            torch.distributed.all_reduce(counts)
        if os.environ.get("RANK", "0") == "0":
            print(f"epoch {epoch}: accuracy {counts[0] / counts[1]:.3f} of {counts[1]:.0f} images")
    if is_distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

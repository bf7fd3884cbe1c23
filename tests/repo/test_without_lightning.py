"""The core in an environment without Lightning and Hydra: loaders, datasets and operators need neither."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

from helpers.checkouts import ROOT

# What the environment lacks: distributions of these names, and what only they need.
LACKING = (
    *("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics"),
    *("hydra", "omegaconf", "antlr4", "jsonargparse"),
)

SCRIPT = """
import importlib.util, json, sys
for name in {lacking!r}:
    assert importlib.util.find_spec(name) is None, name
import tarpeg, torch
from torch import nn

split = tarpeg.Split({folder!r}, tarpeg.RandomResizedCrop(32), flip=0.5)
augment = tarpeg.Augment(flip=0.5, affine=tarpeg.Affine(10))
net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = tarpeg.Loader(split, batch_size=8, augment=augment, workers=1, seed=1)
losses = []
for epoch in range(2):
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels % 10)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
assert len(losses) == 2 * len(loader) and all(map(torch.isfinite, map(torch.tensor, losses)))
loader.close()

first = tarpeg.Loader(split, batch_size=8, augment=augment, workers=0, seed=1)
outer = torch.utils.data.DataLoader(tarpeg.Dataset(first), batch_size=None)
batches = iter(outer)
next(batches)
state = outer.dataset.state_dict()
expected = next(batches)
again = tarpeg.Loader(split, batch_size=8, augment=augment, workers=0, seed=1)
again.load_state_dict(state)
assert torch.equal(next(iter(again)).image, expected.image)

still = tarpeg.Loader(split, batch_size=8, training=False, augment=augment, workers=0, keys=True)
keys = [[key for batch in still for key in batch.key] for _ in range(2)]
assert keys[0] == keys[1] == sorted(keys[0]), "validation is in order"

needing = []
for name in tarpeg.__all__:
    try:
        getattr(tarpeg, name)
    except ModuleNotFoundError as error:
        needing.append((name, error.name))
print(json.dumps(needing))
"""


def environment_without(folder: Path) -> None:
    """Link all that is installed, apart from LACKING."""
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for entry in Path(place).iterdir():
            name = entry.name.lower()
            if not name.startswith(LACKING) and entry.suffix != ".pth" and not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)


def test_a_loop_without_lightning_and_hydra(photos, tmp_path):
    packages = tmp_path / "packages"
    packages.mkdir()
    environment_without(packages)
    paths = f"import sys\nsys.path += {[str(ROOT / 'datamodules'), str(packages)]!r}\n"
    code = paths + SCRIPT.format(lacking=LACKING[:6], folder=str(photos))
    # -S: without the packages of the environment of this test.
    command = [sys.executable, "-S", "-E", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    needing = dict(json.loads(done.stdout.splitlines()[-1]))
    assert set(needing) == {"ShardDataModule", "DataStallMonitor"}
    assert set(needing.values()) == {"lightning"}

"""Two ranks under Lightning, over gloo: the planned samples, and the params that one rank draws."""

from __future__ import annotations

import pytest
from helpers.pictures import jpeg
from helpers.scripts import run_two_ranks
from helpers.small_tars import sample, write_tar
from helpers.training import heavy, module
from tarpeg import RandomResizedCrop, Split

SCRIPT = """
import faulthandler, json, warnings
faulthandler.dump_traceback_later(200, exit=True)  # a run that hangs prints its stacks
from tarpeg import Blocks, CenterCrop, RandomResizedCrop, ShardDataModule, Split, Streaming
from helpers.training import Net, heavy, module, trainer

crop = RandomResizedCrop(16)
splits = {{
    "weights": Split({folder!r}, crop, weights=[n % 4 for n in range(24)], shuffle=Blocks(3, 2)),
    "subset": Split({folder!r}, crop, subset=0.5),
    "views": Split({folder!r}, crop, views=2),
    "streaming": Split({folder!r}, crop, streaming=Streaming(24)),
}}
seen = {{}}
for name, split in splits.items():
    net, run = Net(), trainer({out!r}, devices=2, strategy="ddp", max_epochs=2)
    run.fit(net, datamodule=ShardDataModule(split, batch_size=3, workers=1, keys=True))
    seen[name] = net.keys("train", 2), [list(batch.image.shape) for batch in net.seen["train"]]
for workers in (0, 1):
    net, run = Net(), trainer({out!r}, devices=2, strategy="ddp", max_epochs=2)
    run.fit(net, datamodule=module({folder!r}, workers=workers, augment=heavy(), global_batch_size=4))
    sums = [batch.image.double().sum((1, 2, 3)).tolist() for batch in net.seen["train"]]
    seen[f"augmented{{workers}}"] = [dict(zip(b.key, s)) for b, s in zip(net.seen["train"], sums)]
pictures = ShardDataModule(predict=Split({pictures!r}, CenterCrop(16), target=None), batch_size=2, workers=0)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    seen["predict"] = sum(run.predict(Net(), datamodule=pictures), [])
open({out!r} + "/rank" + str(run.global_rank) + ".json", "w").write(json.dumps(seen))
"""


@pytest.mark.slow
def test_two_processes_get_what_was_planned(tmp_path):
    folder, pictures = tmp_path / "shards", tmp_path / "pictures"
    folder.mkdir()
    pictures.mkdir()
    for shard in range(4):
        members = [member for n in range(6 * shard, 6 * shard + 6) for member in sample(n)]
        write_tar(folder / f"s-{shard}.tar", members)
    for number in range(7):
        (pictures / f"{number}.jpg").write_bytes(jpeg("420", 20, 30, number))
    paths = {"folder": str(folder), "pictures": str(pictures), "out": str(tmp_path)}
    ranks = run_two_ranks(tmp_path, SCRIPT.format(**paths))

    choices = {"weights": {"weights": [n % 4 for n in range(24)]}, "subset": {"subset": 0.5}, "views": {}}
    for name, choice in choices.items():
        split = Split(folder, RandomResizedCrop(16), **choice)
        sampler = split.sampler(split.open(), 0, True)
        (one, shapes), (other, other_shapes) = (rank[name] for rank in ranks)
        assert len(shapes) == len(other_shapes)
        for epoch in (0, 1):
            planned = [f"k{id:04d}" for id in sampler.draw_epoch(epoch)[0]]
            assert sorted(one[epoch] + other[epoch]) == sorted(planned), name
    assert all(shape[0] == 2 and len(shape) == 5 for shape in ranks[0]["views"][1])
    (one, shapes), (other, other_shapes) = (rank["streaming"] for rank in ranks)
    assert len(shapes) == len(other_shapes) == 8
    for epoch in (0, 1):
        assert len(one[epoch] + other[epoch]) == 24
        shards = [{int(key[1:]) // 6 for key in keys[epoch]} for keys in (one, other)]
        assert not shards[0] & shards[1]

    data = module(folder, workers=0, augment=heavy(), global_batch_size=4)
    loader = data.train_dataloader()
    alone = [batch for _ in range(2) for batch in data.augmented(loader)]
    for name in ("augmented0", "augmented1"):
        for batch, one, other in zip(alone, *(rank[name] for rank in ranks), strict=True):
            both = one | other
            assert set(both) == set(batch.key)
            assert [both[key] for key in batch.key] == batch.image.double().sum((1, 2, 3)).tolist()
    assert sorted(ranks[0]["predict"] + ranks[1]["predict"]) == [f"{number}.jpg" for number in range(7)]

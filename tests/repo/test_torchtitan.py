"""The example for torchtitan: finite epochs on two ranks, and checkpoints that another number takes."""

from __future__ import annotations

import json
import runpy
import shutil
import types
import warnings
from pathlib import Path

import pytest
from helpers.checkouts import ROOT
from helpers.scripts import run_processes
from tarpeg import ResumeError

EXAMPLE = types.SimpleNamespace(**runpy.run_path(str(ROOT / "examples" / "torchtitan_loader.py")))
SCRIPT = """
import json
from torch import distributed
from repo.test_torchtitan import trained

distributed.init_process_group("gloo")
rank = distributed.get_rank()
seen = trained({photos!r}, {out!r}, rank, 2)
open({out!r} + f"/rank{{rank}}.json", "w").write(json.dumps(seen))
distributed.destroy_process_group()
"""


def built(shards, rank=0, world=1, batch=8, local=4, **settings):
    settings = {"size": 16, "epochs": 2, "global_batch_size": batch, "workers": 0, **settings}
    config = EXAMPLE.ShardDataLoader.Config(dataset_path=str(shards), **settings)
    sizes = {"dp_rank": rank, "dp_world_size": world, "local_batch_size": local}
    return config.build(**sizes, tokenizer=None, seq_len=0, snapshot_every_n_steps=1)


def trained(shards, out, rank=0, world=1, **settings):
    """Train on, with a checkpoint every two steps; return loss and microbatches' rows of each step."""
    seen = []

    class Seen(EXAMPLE.Training):
        def _train_step(self, microbatches):
            loss = super()._train_step(microbatches)
            rows = [
                [*zip(labels.tolist(), part["input"].double().sum((1, 2, 3)).tolist(), strict=True)]
                for part, labels in microbatches
            ]
            seen.append((loss, rows))
            return loss

    training = Seen(built(shards, rank, world, **settings), Path(out))
    training.load()
    training.run(100, every=2)
    return seen


@pytest.mark.slow
def test_another_number_of_ranks_goes_on_within_an_epoch(photos, tmp_path):
    code = SCRIPT.format(photos=str(photos), out=str(tmp_path))
    done = run_processes(tmp_path, 2, code)
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert len(ranks[0]) == len(ranks[1]) == 6, "two epochs of 8, 8 and 7 samples"
    both = [
        (loss, [tuple(row) for part in (*mine, *theirs) for row in part])
        for (loss, mine), (_, theirs) in zip(*ranks, strict=True)
    ]
    for begin in (0, 3):
        rows = [row for _, part in both[begin : begin + 3] for row in part]
        assert len(rows) == len({*rows}) == 23, "every sample once per epoch"
    for step in (4, 6):
        shutil.rmtree(tmp_path / f"step-{step}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP: there is one process
        alone = trained(photos, tmp_path)
    assert [len(parts) for _, parts in alone] == [2] * 4, "microbatches, of the steps that were left"
    for (loss, rows), (alone_loss, parts) in zip(both[2:], alone, strict=True):
        assert [row for part in parts for row in part] == rows
        assert alone_loss == pytest.approx(loss, rel=1e-5), "the weights went on too"


def test_the_script_goes_on_from_its_checkpoint(photos, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DCP: there is one process
        for steps in ("2", "3"):
            EXAMPLE.main(str(photos), str(tmp_path), steps)
    lines = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["step 1", "step 2", "step 3"]


def test_a_step_has_as_many_microbatches_at_the_end_of_an_epoch(photos):
    data = built(photos, batch=22, local=2, epochs=1)
    sizes = [len(labels) for _, labels in data]
    assert sizes == [2] * 11 + [1] + [0] * 10
    assert [len(labels) for _, labels in built(photos, batch=22, local=2, epochs=1, drop_last=True)] == [
        2
    ] * 11


def test_what_cannot_go_on_is_an_error(photos):
    with pytest.raises(
        ValueError, match=r"global_batch_size=6 must be a multiple of local_batch_size=4 times"
    ):
        built(photos, batch=6)
    data = built(photos)
    batches = iter(data)
    next(batches)
    with pytest.raises(RuntimeError, match="between two steps"):
        data.state_dict()
    next(batches)
    state = data.state_dict()
    with pytest.raises(ResumeError, match="global_batch was 8"):
        built(photos, batch=None, world=1).load_state_dict(state)

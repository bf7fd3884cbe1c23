"""``tarpeg COMMAND``, and arguments that Hydra would misread."""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.scripts import run_script, run_tool
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, strategies as st
from tarpeg_hydra import command
from tarpeg_hydra.hints import check_arguments, check_settings, check_truths, settings
from tarpeg_hydra.overrides import quoted

CODECS = ", ".join(sorted(path.stem for path in Path(__file__).parents[2].glob("conf/codec/*.yaml")))
OWN = "for shards of your own: data=shards data.train.shards="
TABLE = "to write the classes of images to a table: predict=/x ckpt_path=..."


@pytest.mark.parametrize(
    "arguments",
    [
        ["data.train.shards=/d/p-{000..001}.tar"],
        # What a shell makes of it; Hydra would take the last.
        ["data.train.shards=/d/p-000.tar", "data.train.shards=/d/p-001.tar"],
    ],
)
def test_unquoted_braces_end_with_a_hint(arguments):
    with pytest.raises(SystemExit) as caught:
        check_arguments("train", ["data=shards", *arguments])
    assert str(caught.value).startswith("train: data.train.shards has braces without quotes: /d/p-")
    assert str(caught.value).endswith("'data.train.shards=\"/data/train-{000..009}.tar\"'")


@pytest.mark.parametrize(
    ("argument", "quoted"),
    [
        ("source=~/x", "'source=\"~/x\"'"),
        ("source=/data/a (1)/x.tar", "'source=\"/data/a (1)/x.tar\"'"),
        ("dest=it's", """'dest="it'"'"'s"'"""),
        ("data.train.shards=a:b,c d=e", "'data.train.shards=\"a:b,c d=e\"'"),
        ("source=/home/jürgen/日本", "'source=\"/home/jürgen/日本\"'"),
        ("source=C:\\a (1)\\", "'source=\"C:\\a (1)\\\\\"'"),
    ],
)
def test_what_hydra_cannot_read_is_shown_with_quotes(argument, quoted):
    with pytest.raises(SystemExit) as caught:
        check_arguments("train", [argument])
    text = str(caught.value)
    assert text.startswith(f"train: {argument} cannot be read: ") and text.endswith(quoted)
    (unquoted,) = shlex.split(quoted)
    check_arguments("train", [unquoted])


def test_several_values_of_a_single_run_are_one_line():
    with pytest.raises(
        SystemExit, match=r"^plan: source=/a,b has several values: -m runs .*: 'source=\"/a,b\"'$"
    ):
        check_arguments("plan", ["source=/a,b"])


@given(st.text(max_size=8) | st.sampled_from(["true", "null", "1e5", "007", "inf", "12:30:45", '\\\\"a\\']))
@example("é")
def test_quoted_texts_are_read_as_they_were(value):
    (word,) = shlex.split(quoted("key", value))
    assert OverridesParser.create().parse_override(word).value() == value


@pytest.mark.parametrize(
    "arguments",
    [
        ['data.train.shards="/d/p-{000..001}.tar"', "data.val.shards=['/d/{0,1}.tar']"],
        ["+model.extra={a: 1}", "data.prepare.out=${oc.env:HOME}/x", "--multirun", "seed=1,2"],
        ["hydra.run.dir=a", "hydra.run.dir=b", "~logger", "+trainer.x=1", "trainer=ddp", "seed=1", "seed=2"],
        ["data.train.shards=/d/a.tar", "data.train.shards=/e/b.tar"],  # Hydra takes the last
        ["--config-dir", "conf (1)", "seed="],
    ],
)
def test_what_is_right_passes(arguments):
    check_arguments("train", arguments)


BUCKETS = "{_target_: tarpeg.AspectBuckets, resolution: 64}"
REPLACE = f"than {BUCKETS}: replace them all by '~data.train.crop' '+data.train.crop={BUCKETS}'"


def test_the_commands_are_listed(monkeypatch, capsys):
    for arguments, status in (["--help"], 0), ([], 0), (["nonsense"], 2):
        monkeypatch.setattr(sys, "argv", ["tarpeg", *arguments])
        with pytest.raises(SystemExit) as caught:
            command.main()
        assert caught.value.code == status
        printed = "".join(capsys.readouterr())
        assert "build-cache" in printed and "doctor" in printed


@pytest.mark.quick
@pytest.mark.sweep
@pytest.mark.parametrize("name", command.COMMANDS)
def test_a_command_has_the_settings_of_its_tool(name):
    code = f"sys.argv = ['/bin/tarpeg', {name!r}, '--help']\nfrom tarpeg_hydra.command import main; main()"
    done = run_script(code)
    assert done.returncode == 0, done.stderr
    assert f"  tarpeg {name} " in done.stdout and "python tools" not in done.stdout
    explained = re.search(r"Every setting is explained in (\S+\.yaml)", done.stdout)
    assert name == "doctor" or Path(explained[1]).is_file()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("train", ["data.bach_size=3"], "data.bach_size is not a setting; did you mean data.batch_size?"),
        ("train", ["dta.train.flip=1"], "dta.train.flip is not a setting; did you mean data.train.flip?"),
        ("train", ["max_epochs=3"], "max_epochs is not a setting; did you mean trainer.max_epochs?"),
        ("train", ["zzz=3"], "zzz is not a setting; `python train.py --help` lists them"),
        (
            "train",
            ["data.train.fidelity=exact"],
            "data.train.fidelity is not in the file of these settings: add it with +data.train.fidelity="
            "exact",
        ),
        (
            "train",
            ["data=shards", "data.test.shards=/x"],
            "data.test is not in the file of these settings: add all that it needs, "
            "'+data.test={_target_: ..., ...}'",
        ),
        ("train", ["trainer.epochs=3"], "trainer.epochs is not a setting; did you mean trainer.max_epochs?"),
        (
            "train",
            ["+data.train.fidelty=exact"],
            "data.train.fidelty is not an argument of tarpeg.Split; did you mean data.train.fidelity?",
        ),
        ("train", ["train=/x"], f"train is not a setting; {OWN}/x"),
        ("train", ["data.predict=/x"], f"data.predict is not a setting; {TABLE}"),
        ("train", ["data.predict.shards=/x"], f"data.predict.shards is not a setting; {TABLE}"),
        ("train", ["+data.predict=/x"], f"data.predict=/x must be a split; {TABLE}"),
        ("train", ["data.train=/x"], f"data.train=/x must be a split; {OWN}/x"),
        (
            "train",
            ["data.train.shards=/x"],
            "data.train.shards=/x is given with data=synthetic, which draws photographs and has their "
            "settings: add data=shards",
        ),
        (
            "preview",
            ["trainer.max_epochs=1"],
            "trainer.max_epochs is a setting of train.py: leave it out here",
        ),
        ("plan", ["trainer=cpu"], "trainer is a setting of train.py: leave it out here"),
        ("plan", ["data.bach_size=3"], "data.bach_size is not a setting; did you mean data.batch_size?"),
        ("build_cache", ["dst=y"], "dst is not a setting; did you mean dest?"),
        ("build_cache", ["replace=no"], "replace=no must be true or false"),
        ("train", ["trust_ckpt=no"], "trust_ckpt=no must be true or false"),
        (
            "train",
            ["trainer.enable_model_summary=off"],
            "trainer.enable_model_summary=off must be true or false",
        ),
        (
            "build_cache",
            ["codec.shorter=64"],
            "codec.shorter is a setting of codec=packed, codec=raw, codec=resized alone: give one of them",
        ),
        (
            "build_cache",
            ["codec=rav"],
            f"codec=rav must be one of {CODECS}; did you mean codec=raw?",
        ),
        ("train", ["data=shards", "data.train.shards=/x", "+data.allow_overlap=true", "data.val=null"], ""),
        ("train", ["data.bach_size=3", "--multirun"], ""),
        (
            "plan",
            ["data=shards", f"data.train.crop={BUCKETS}"],
            f"data.train.crop has other settings {REPLACE}",
        ),
        ("plan", ["data=shards", "~data.train.crop", f"+data.train.crop={BUCKETS}"], ""),
        (
            "train",
            ["data=shards", "data.train.crop._target_=tarpeg.Patches"],
            "data.train.crop._target_=tarpeg.Patches has no argument size: add '~data.train.crop.size'",
        ),
        ("train", ["data=shards", "data.train.crop._target_=tarpeg.Patches", "~data.train.crop.size"], ""),
        (
            "train",
            ["data.train.crop._target_=tarpeg.AspectBucket"],
            "data.train.crop._target_=tarpeg.AspectBucket does not exist; did you mean "
            "data.train.crop._target_=tarpeg.AspectBuckets?",
        ),
        ("preview", ["augment=null"], "augment=null cannot be given here: ~augment leaves it out"),
        ("train", ["model=5"], "model=5 cannot be given here: choose one: model=NAME"),
        (
            "train",
            ["model.net=small"],
            "model.net=small must be settings, such as model.net._target_=torchvision.models."
            "shufflenet_v2_x0_5; one of the files of model: model=small",
        ),
        (
            "train",
            ["model=resnet18", "model.optimizer=adam"],
            "model.optimizer=adam must be settings, such as model.optimizer._target_=torch.optim.SGD",
        ),
        ("train", ["model.net={_target_:torch.nn.Identity}", "logger.csv=null", "~callbacks.stall"], ""),
        ("train", ["callbacks.checkpoint.dirpath=/x", "logger.csv.save_dir=s3://bucket/run"], ""),
        ("train", ["hydra/launcher=basic", "+hydra.launcher.jobs=2", "hydra.launcher.jobs=3"], ""),
    ],
)
def test_settings_that_do_not_exist_are_one_line_with_a_similar_name(program, arguments, message):
    with pytest.raises(SystemExit) if message else nullcontext() as caught:
        check_settings(program, arguments)
    assert not message or str(caught.value) == f"{program}: {message}"


def test_a_part_of_a_dict_with_special_characters_needs_quotes_of_its_own():
    with pytest.raises(
        SystemExit, match=r"needs Hydra's quotes there, and the whole .*: '\{separator: \";\"\}'$"
    ):
        check_arguments("train", ["data.train.target={_target_: tarpeg.Label, separator: ;}"])
    check_arguments("train", ['data.train.target={_target_: tarpeg.Label, separator: ";"}'])


@pytest.mark.parametrize(
    ("program", "key"), [("train", "validate"), ("build_cache", "verify"), ("make_shards", "replace")]
)
def test_a_text_in_place_of_true_or_false_is_refused_by_each_job_of_a_sweep(program, key):
    with initialize_config_dir(str(Path(settings(program)).parent), version_base="1.3"):
        *right, wrong = [compose(program, [f"{key}={value}"]) for value in ("true", "false", "no")]
    for config in right:
        check_truths(program, config)
    with pytest.raises(SystemExit, match=f"^{program}: {key}=no must be true or false$"):
        check_truths(program, wrong)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(SystemExit, match=rf"^train: .* {folder}: give hydra\.run\.dir="):
            check_settings("train", [f"hydra.run.dir={folder}"])
    check_settings("train", [f"hydra.run.dir={tmp_path}/new/run"])
    for name in ("${hydra:job.name}", "${hydra.job.num}"):  # which Hydra knows when it runs
        check_settings("train", [f"hydra.run.dir={tmp_path}/{name}"])
    assert not (tmp_path / "new").exists()


def test_the_folder_to_write_has_one_name_in_both_tools(tmp_path):
    shards, cache = tmp_path / "shards", tmp_path / "cache"
    done = run_tool("make_shards", f"dest={shards}", "samples=3", "size=64", "workers=0", cwd=tmp_path)
    assert done.returncode == 0 and f"1 shard in {shards}: 3 samples" in done.stdout, done.stderr
    settings = ("measure=false", "workers=0")
    done = run_tool("build_cache", f"source={shards}", f"out={cache}", *settings, cwd=tmp_path)
    assert done.returncode == 0 and (cache / "manifest.json").is_file(), done.stderr

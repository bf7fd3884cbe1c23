"""tarpeg's configuration as the example of another project takes it."""

from __future__ import annotations

import shutil

import pytest
import tarpeg
from helpers.checkouts import ROOT
from hydra import compose, initialize_config_dir
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

CONF = ROOT / "examples" / "other_project" / "conf"
SHARDS = ("data.train.shards=x.tar", "data.val.shards=x.tar")


def composed(*overrides: str):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


@pytest.mark.sweep
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "augment").glob("*.yaml")))
def test_every_augmentation_is_whole_in_another_project(name):
    overrides = ["augment.mix.classes=10"] if name == "mix" else []
    data = instantiate(composed(f"augment={name}", *overrides, *SHARDS).data)
    assert type(data.augment) is tarpeg.Augment


def test_mixing_asks_for_the_number_of_classes():
    config = composed("augment=mix", *SHARDS)
    with pytest.raises(InstantiationException, match="classes=None ") as caught:
        instantiate(config.data)
    assert "full_key: data.augment.mix" in str(caught.value)
    config = composed("augment=light", "+augment.erase.probability=1", *SHARDS)
    with pytest.raises(InstantiationException, match=r"erase=.*tarpeg\.Erase"):
        instantiate(config.data)


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "conf" / "data").glob("*.yaml")))
def test_every_data_config_is_whole_in_another_project(name):
    config = composed(f"data={name}")
    required = {"shards": ["data.train.shards", "data.val.shards"], "folder": ["data.prepare.root"]}
    missing = required.get(name, [])
    assert OmegaConf.missing_keys(config) == set(missing)
    if missing:
        with pytest.raises(MissingMandatoryValue, match=missing[0]):
            instantiate(config.data)
    # Under any other key it means the same: relative references stay inside, and there is no defaults list.
    content = OmegaConf.load(ROOT / "conf" / "data" / f"{name}.yaml")
    assert "defaults" not in content
    for key in missing:
        OmegaConf.update(config, key, "x.tar")
        OmegaConf.update(content, key.removeprefix("data."), "x.tar")
    elsewhere = OmegaConf.create({"my": {"input": content}})
    assert type(instantiate(config.data)) is type(instantiate(elsewhere.my.input)) is tarpeg.ShardDataModule


def test_a_file_of_ones_own_adds_to_a_group(tmp_path):
    shutil.copytree(CONF, tmp_path / "conf")
    (tmp_path / "conf" / "data").mkdir()
    (tmp_path / "conf" / "data" / "mine.yaml").write_text("defaults: [shards]\ntrain: {shards: mine.tar}\n")
    with initialize_config_dir(str(tmp_path / "conf"), version_base="1.3"):
        config = compose("config", ["data=mine"])
    assert (config.data.train.shards, config.data.train.flip) == ("mine.tar", 0.5)

"""Classes and labels of the splits of a ShardDataModule, and of its checkpoints."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
from helpers.loaders import ALL
from helpers.pictures import jpeg
from helpers.small_tars import sample
from helpers.training import Net, fitted, trainer
from tarpeg import (
    CenterCrop,
    Folder,
    FolderShards,
    Label,
    Loader,
    Mixture,
    MixtureLoader,
    ShardDataModule,
    Split,
    build_cache,
    make_shards,
)
from tarpeg.errors import ShardError

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's and torch's own


@pytest.mark.quick
def test_class_names(tmp_path):
    for number, name in enumerate(("ant", "bee", "cat", "ant", "bee", "cat")):
        (tmp_path / "pets" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "pets" / name / f"{number}.jpg").write_bytes(jpeg("420", 40, 48, seed=number))
    prepare = FolderShards(str(tmp_path / "pets"), str(tmp_path / "out"), val_share=0.4)
    build_cache(tmp_path / "pets", tmp_path / "cache", executor=0)

    def data(shards, **options):
        return ShardDataModule(Split(shards, CenterCrop(16), **options), workers=0, prepare=prepare)

    packed = data(f"{tmp_path}/out/train-*.tar")
    assert (packed.classes, packed.num_classes) == (["ant", "bee", "cat"], 3)
    assert data(tmp_path / "cache").classes == packed.classes
    assert data(tmp_path / "cache", target=["cls"]).num_classes is None
    assert data([tmp_path / "cache", f"{tmp_path}/out/train-*.tar"]).classes == packed.classes
    stored = tmp_path / "out" / "classes.json"
    stored.write_text('{"cat": 2, "ant": 0, "bee": 1}')  # in another order
    assert data(f"{tmp_path}/out/train-*.tar").classes == packed.classes
    for text in ('{"ant": 0, "bee": 2}', '["ant", "bee"]', '{"ant": 0,}', '{"0": "ant"}', '{"ant": 0.0}'):
        stored.write_text(text)
        with pytest.warns(UserWarning, match=r"classes.json is not read, so the names .* are unknown"):
            assert data(f"{tmp_path}/out/train-*.tar").classes is None
    net = Net()
    for net.num_classes, name in ((2, "cat"), (1, "bee")):
        text = rf"labels 0\.\.2 .*num_classes=3, .* (\d): label \1 is '{name}'$"
        with pytest.raises(ShardError, match=text):
            fitted(tmp_path, data(tmp_path / "cache"), net)


def test_shards_whose_labels_mean_other_classes_are_not_read_together(tmp_path):
    for root, names in {"pets": ("ant", "bee"), "more": ("bee", "cat"), "fewer": ("ant",)}.items():
        for number, name in enumerate(names):
            (tmp_path / root / name).mkdir(parents=True)
            (tmp_path / root / name / f"{number}.jpg").write_bytes(jpeg("420", 40, 48, seed=number))
        build_cache(tmp_path / root, tmp_path / f"{root}.cache", executor=0)
    pets, more, fewer = (tmp_path / f"{root}.cache" for root in ("pets", "more", "fewer"))
    for given in ([pets, more], [more, pets]):
        with pytest.raises(ShardError, match=r"label 0 is 'ant' in .*pets\.cache and 'bee' in .*more\.cache"):
            Loader(Split(given, CenterCrop(16)), batch_size=1)
        with pytest.raises(ShardError, match="label 0 is "):
            ShardDataModule(Split(given, CenterCrop(16)), workers=0).setup()
        Loader(Split(given, CenterCrop(16), target=None), batch_size=1).close()
    together = ShardDataModule(Split([pets, fewer], CenterCrop(16)), workers=0)
    together.setup()
    assert together.classes == ["ant", "bee"]
    with pytest.warns(UserWarning, match="the cache has no names of classes: label 0 is "):
        assert build_cache([pets, more], tmp_path / "both", executor=0).classes is None
    # A plain loop does not call setup().
    data = ShardDataModule(Split(pets, CenterCrop(16)), Split(more, CenterCrop(16)), workers=0)
    with pytest.raises(ShardError, match="label 0 is 'ant' in train and 'bee' in val"):
        data.train_dataloader()
    sources = {name: Split(tmp_path / f"{name}.cache", CenterCrop(16)) for name in ("pets", "more")}
    mixture = Mixture(sources, weights={"pets": 1, "more": 1})
    with pytest.raises(
        ShardError, match="label 0 is 'ant' in pets and 'bee' in more, which would be one class"
    ):
        MixtureLoader(mixture, 2, workers=0)


def test_a_class_that_only_a_later_split_has_counts(photos):
    def split(names):
        table = {"file": ALL, "name": [names[k % len(names)] for k in range(len(ALL))]}
        return Split(photos, CenterCrop(16), labels=table, key="file", target="name")

    two, three = split(["ant", "bee"]), split(["ant", "bee", "cow"])
    mixture = Mixture({"two": two, "three": three}, weights={"two": 1, "three": 1})
    for data in (
        ShardDataModule(two, three, workers=0, allow_overlap=True),
        ShardDataModule(mixture, workers=0),
    ):
        assert data.classes == ["ant", "bee", "cow"]
        net = Net()
        net.num_classes = 2
        with pytest.raises(ShardError, match=r"labels 0\.\.2 .*num_classes=3, .*label 2 is 'cow'"):
            trainer(".").fit(net, data)


def test_classes_of_all_splits_are_compared_by_name_and_by_label(photos):
    def split(names, classes=None):
        table = {"file": ALL, "name": [names[k % len(names)] for k in range(len(ALL))]}
        label = Label("name", classes=classes) if classes else "name"
        return Split(photos, CenterCrop(16), labels=table, key="file", target=label)

    def setup(*splits):
        data = ShardDataModule(test=list(splits), workers=0, allow_overlap=True)
        data.setup()
        return data.classes

    ant, cow, dog = split(["ant", "bee"]), split(["ant", "bee", "cow"]), split(["ant", "bee", "dog"])
    with pytest.raises(ShardError, match=r"label 2 is 'cow' in test/1 and 'dog' in test/2.*same classes="):
        setup(ant, cow, dog)
    gaps = split(["cat", "dog"], {"cat": 1, "dog": 2})
    for other in (split(["cat", "dog"]), split(["cat", "dog"], {"cat": 2, "dog": 1})):
        with pytest.raises(
            ShardError, match=r"label [12] is '(cat|dog)' in test/0 and '(dog|cat)' in test/1"
        ):
            setup(gaps, other)
    with pytest.raises(ShardError, match=r"class 'cat' has the label 0 in test/0 and 4 in test/1, .*two for"):
        setup(split(["cat"], {"cat": 0}), split(["cat"], {"cat": 4}))
    alias = split(["cat", "kitty", "dog"], {"cat": 0, "kitty": 0, "dog": 1})
    assert setup(alias, split(["cat", "dog"])) == ["cat", "dog"]
    with pytest.raises(ShardError, match="label 0 is 'cat' in test/0 and 'ant' in test/1"):
        setup(alias, split(["ant", "cat"]))


def test_a_checkpoint_is_used_with_its_classes(tmp_path):
    def data(*names, kind="train"):
        out = tmp_path / "-".join(names)
        for number, name in enumerate(names):
            (out / "images" / name).mkdir(parents=True, exist_ok=True)
            (out / "images" / name / "a.jpg").write_bytes(jpeg("420", 40, 48, seed=number))
        make_shards(out / "shards", Folder(str(out / "images")), replace=True)
        return ShardDataModule(**{kind: Split(f"{out}/shards/*.tar", CenterCrop(16))}, workers=0)

    path, run = tmp_path / "run.ckpt", partial(trainer, tmp_path)
    fitted(tmp_path, data("ant", "bee", "cat")).trainer.save_checkpoint(path)
    moved = data("bee", "cat", "fox", kind="val")
    text = r"^label 0 was 'ant' .*'bee' now: 3 of 3 labels"
    with pytest.raises(ShardError, match=text):
        run().validate(Net(), moved, ckpt_path=path)
    with pytest.raises(ShardError, match="restore these folders"):
        run(max_epochs=2).fit(Net(), data("bee", "cat", "fox"), ckpt_path=path)
    with pytest.warns(UserWarning, match="label 1 .*'bee' .*'bees'"):
        run().validate(Net(), data("ant", "bees", "cat", kind="val"), ckpt_path=path, verbose=False)
    run().validate(Net(), data("ant", "bee", "cat", kind="val"), ckpt_path=path, verbose=False)
    images = Split(tmp_path / "bee-cat-fox" / "images", CenterCrop(16), target=None)
    alone = ShardDataModule(predict=images, workers=0)
    run().predict(Net(), alone, ckpt_path=path)
    assert alone.classes == ["ant", "bee", "cat"]
    alone.load_state_dict({"classes": ["bee", "ant"]})  # of another checkpoint: not compared with the first
    alone.setup("predict")
    assert alone.classes == ["bee", "ant"]
    others = data("bee", "cat", "fox", kind="predict")
    assert others.classes == ["bee", "cat", "fox"]
    others.load_state_dict({"classes": ["ant", "bee", "cat"]})
    assert others.classes == ["ant", "bee", "cat"]


def test_splits_with_other_labels_are_an_error(tmp_path):
    for number, name in enumerate(("cat", "dog", "fox")):
        for split in ("train", "val")[: 1 + (name != "cat")]:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "a.jpg").write_bytes(jpeg("420", 40, 48, seed=number))
    out = {name: tmp_path / f"{name}-shards" for name in ("train", "val")}
    for name, folder in out.items():
        make_shards(folder, Folder(str(tmp_path / name)), prefix=name)
    splits = {name: Split(f"{folder}/*.tar", CenterCrop(16)) for name, folder in out.items()}
    data = ShardDataModule(**splits, workers=0)
    assert str(data) == "ShardDataModule(train, val)"
    with pytest.raises(ShardError, match=r"label 0 .*'cat' in train .*'dog' in val.*Folder\(root"):
        data.setup()
    ShardDataModule(splits["train"], test=splits["train"], allow_overlap=True, workers=0).setup()

    before = (out["train"] / "classes.json").read_bytes()
    with pytest.raises(ShardError, match=r"label 0 .*'cat' in .*train-000000\.tar .*'dog'"):
        make_shards(out["train"], Folder(str(tmp_path / "val")), prefix="val")
    assert (out["train"] / "classes.json").read_bytes() == before
    (tmp_path / "val" / "fox").rename(tmp_path / "val" / "cat")
    make_shards(out["train"], Folder(str(tmp_path / "val")), prefix="val")
    assert (out["train"] / "classes.json").read_bytes() == before, "with the class that val lacks"


def test_splits_with_labels_in_another_order_are_a_warning(shard_of, tmp_path):
    path = shard_of(sample(0), sample(1))
    (tmp_path / "labels.csv").write_text("key,age,height\nk0000,1.5,2.5\nk0001,3.5,4.5\n")

    def data(*columns):
        splits = [
            Split(path, CenterCrop(8), labels=tmp_path / "labels.csv", key="key", target=each)
            for each in columns
        ]
        return ShardDataModule(splits[0], splits[1], workers=0, allow_overlap=True)

    with pytest.warns(UserWarning, match=r"train has target=\['age', 'height'\], val has"):
        data(["age", "height"], Label(["height", "age"], kind="number")).setup()
    for columns in ((["age", "height"], ["age", "height"]), (["age", "height"], "age")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data(*columns).setup()


def test_missing_labels_are_an_error_at_setup(shard_of, tmp_path):
    image = [(f"k{number}.jpg", jpeg("420", 24, 24)) for number in range(3)]
    shards = shard_of(image)
    with pytest.raises(ShardError, match=r"x\.tar, key 'k0' .*'cls'.* None"):
        ShardDataModule(Split(shards, CenterCrop(16))).setup("fit")
    ShardDataModule(Split(shards, CenterCrop(16), target=None)).setup("fit")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "写真 1.JPG").write_bytes(image[0][1])
    (tmp_path / "images" / "0 broken.jpg").write_bytes(b"")
    split = Split(tmp_path / "images", CenterCrop(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the error is enough
        with pytest.raises(ShardError, match=r"'0 broken\.jpg', .*Split\(target=None"):
            ShardDataModule(split).setup("fit")
    with pytest.warns(UserWarning, match="no labels"):
        ShardDataModule(predict=split).setup("predict")


def test_a_label_that_the_loss_refuses_gets_a_note(shard_of, tmp_path):
    members = [sample(number, label=b"%d" % (5 + number)) for number in range(3)]
    data = ShardDataModule(Split(shard_of(*members), CenterCrop(16)), workers=0)
    with pytest.raises(IndexError, match="out of bounds") as caught:
        fitted(tmp_path, data)
    note = f"labels 5..7 need num_classes=8; the first 7: shard {tmp_path}/x.tar, key 'k0002'"
    assert getattr(caught.value, "__notes__", [note]) == [note]

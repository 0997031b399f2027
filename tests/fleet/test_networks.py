# SPDX-License-Identifier: Apache-2.0
"""Models that are no stacks of blocks: counted as published, made of layers, divided by data."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
import yaml

from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet import Question, plan
from trnlab.fleet.comparison.contenders import gpu_contender, work_of
from trnlab.fleet.costs.networks import step
from trnlab.fleet.costs.ranks import RankCost
from trnlab.fleet.models.configurations import from_config, model
from trnlab.fleet.models.counts import Counted
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.fleet.search.layout import pinned
from trnlab.fleet.search.replicas import KEEPS, LARGER, UNEVEN
from trnlab.stacks import parse

SMALL = {
    "model_type": "resnet",
    "layer_type": "bottleneck",
    "embedding_size": 16,
    "hidden_sizes": [32, 64],
    "depths": [2, 1],
    "num_labels": 10,
    "image_size": 32,
}
TARGET = "trn1.2xlarge"


@pytest.fixture(scope="module")
def small():
    return from_config(SMALL, "small")


def _asked(small, layout="", **given):
    asked = {"tokens": 1e6, "targets": (TARGET,), "instances": (1, 1), "batch": 32} | given
    return Question(small, fixed=pinned(layout), **asked)


@pytest.mark.parametrize(("name", "count"), [("resnet50", 25_557_032), ("resnet101", 44_549_160)])
def test_parameters_are_those_that_are_published(name, count):
    """In torchvision's documentation, of its models of these names (num_params)."""
    assert model(name).parameters == count


def test_the_products_of_resnet_50_are_those_that_are_published():
    """4.09 GMAC of an image forward (torchvision), three times that without a gradient of the image."""
    found = model("resnet50")
    assert found.flops_per_token(1) / 2 == pytest.approx(3 * 4.09e9 - 112**2 * 147 * 64, rel=1e-3)
    assert (found.unit, found.counted, found.epoch) == ("images", "images", 1_281_167)


def test_what_is_counted_is_what_is_planned(small):
    made = step(small, 4, False, "bfloat16")
    assert made.count == small.parameters
    assert made.flops / 4 == pytest.approx(small.flops_per_token(1))
    assert made.layers == 3
    assert made.batch_bytes / 4 == small.brought == 2 * 3 * 32**2 + 4
    assert step(small, 4, False, "float32").batch_bytes / 4 == 4 * 3 * 32**2 + 4


def test_the_largest_microbatch_that_fits_is_taken_and_the_others_are_counted(small):
    found = plan(_asked(small))
    assert found.chosen.step.layout.microbatch == 16
    assert found.chosen.step.layout.recompute == "none"
    assert len(found) + sum(found.refused.values()) == found.looked_at == 9 * 6 * 2
    assert found.refused[LARGER] == 4 * 6
    assert found.refused[KEEPS] == 5 * 6
    assert found.refused[UNEVEN] == 8 * 6
    assert found.chosen.step.tokens == 32
    assert found.chosen.step.flops == pytest.approx(32 * small.flops_per_token(1))


def test_a_given_microbatch_takes_longer_and_less_memory(small):
    large, little = (plan(_asked(small, f"mb={n},zero=1,overlap=1")).chosen.step for n in (16, 4))
    assert little.layout.microbatch == 4
    assert little.seconds["compute"] > large.seconds["compute"]
    assert little.bytes["activations"] < large.bytes["activations"]


def test_what_is_made_again_is_not_kept(small):
    keeps, again = (
        plan(_asked(small, f"mb=16,zero=0,overlap=1,recompute={word}")).chosen.step for word in ("none", "full")
    )
    assert again.bytes["activations"] < keeps.bytes["activations"]
    assert again.seconds["compute"] > keeps.seconds["compute"]


@pytest.mark.parametrize(("parameters", "copies", "gathered"), [(200, 3, 200), (400, 190, 190), (400, 0, 400)])
def test_weights_that_are_gathered_are_those_that_products_read(parameters, copies, gathered):
    """In their own format, unless nearly all of them are copied to another."""
    figures = dict.fromkeys((field.name for field in fields(RankCost)), 0)
    assert RankCost(**figures | {"parameters": parameters, "copies": copies}).gathered == gathered


def test_a_host_traces_the_update_once_a_step(small):
    """And each microbatch anew, which the device meanwhile computes: by the vendor's stack alone, in which operators
    are traced as they come."""
    words = "mb=4,zero=0,overlap=0"
    one, many = (plan(_asked(small, words, batch=n, stack=parse("vendor"))) for n in (8, 64))
    steps = [found.chosen.step for found in (one, many)]
    waits = [step.seconds["host"] for step in steps]
    assert 0 < waits[0] < waits[1] < 8 * waits[0]  # 4 images at a time on each of two cores: one time, and eight
    assert steps[1].seconds["compute"] == pytest.approx(8 * steps[0].seconds["compute"])
    assert plan(_asked(small, words)).chosen.step.seconds["host"] == 0.0


def test_ranks_are_kept_for_the_next_plan(small, tmp_path):
    first, second = (plan(_asked(small, "mb=4"), tmp_path) for _ in range(2))
    assert second.compiled == 0 < first.compiled
    assert second.chosen.step == first.chosen.step


def test_a_model_without_its_step_is_refused():
    with pytest.raises(UsageError, match="TRN577"):
        Question(UnpartitionedModel("unknown", 0, (), 1, figures=Counted(1, 1.0, 1.0)), 1e9, (TARGET,))


def test_its_tensors_are_not_divided(small):
    with pytest.raises(UsageError, match="TRN174") as caught:
        plan(_asked(small, "tp=2")).chosen  # noqa: B018
    assert "only its data is divided" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"depths": [2]}, "no stages of bottlenecks"),
        ({"depths": "2,1"}, "not a list of whole numbers"),
        ({"image_size": 33}, "no multiple of 32"),
        ({"hidden_sizes": [32, 66]}, "no stages of bottlenecks"),
    ],
)
def test_configurations_that_are_none(changed, said):
    with pytest.raises(UsageError, match="TRN172") as caught:
        from_config(SMALL | changed, "small")
    assert said in str(caught.value)


def test_basic_blocks_are_not_known():
    with pytest.raises(UsageError, match="TRN586"):
        from_config(SMALL | {"layer_type": "basic"}, "small")


def test_nothing_is_published_of_them_on_gpus():
    side = gpu_contender(work_of(model("resnet50"), 1024), "p5.48xlarge", 1)
    assert not side.known
    assert side.rate.low < side.rate.high
    assert "nothing is published for a convolutional network" in side.basis[0]


@pytest.fixture
def file(tmp_path):
    """The smallest that there is: what is told of it does not hang on its depth."""
    file = tmp_path / "small.yaml"
    file.write_text(yaml.safe_dump(SMALL | {"hidden_sizes": [32], "depths": [1]}))
    return str(file)


def test_plans_are_told_in_images(file, tmp_path, capsys):
    common = ["--target", TARGET, "--instances", "1", "--global-batch", "32", "--cache", str(tmp_path / "cache")]
    page, csv = tmp_path / "plan.html", tmp_path / "plan.csv"
    assert main(["plan", file, "--epochs", "2", *common, "--page", str(page), "--csv", str(csv)]) == 0
    text = capsys.readouterr().out
    for words in ("2.56 M images in steps of 32 images", "images/s", "$/Mimages", "$/epoch"):
        assert words in text
    assert "tokens" not in text.split("energy:")[0]
    assert "Images/s" in page.read_text()
    assert main(["plan", file, "--samples", "2562334", *common, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["question"]["tokens"] == 2562334
    assert found["question"]["counted"] == "images"
    assert main(["plan", file, "--samples", "1M", "--tokens", "1M", *common]) == 2
    assert "TRN178" in capsys.readouterr().err


def test_epochs_take_a_size_of_one(capsys):
    assert main(["plan", "bert-base", "--epochs", "2", "--target", TARGET]) == 2
    assert "add --epoch N" in capsys.readouterr().err


def test_bakeoffs_of_images(file, tmp_path, capsys):
    asked = ["bakeoff", file, "--a", TARGET, "--b", "p5.48xlarge", "--batch", "32", "--no-cache"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["work"]["class"], found["work"]["unit"]) == ("convolution", "images")
    ours, theirs = found["sides"]
    assert ours["per_s"]["value"] > 0
    assert theirs["per_s"]["value"] is None

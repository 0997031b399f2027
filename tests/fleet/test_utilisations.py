# SPDX-License-Identifier: Apache-2.0
"""Published utilisations: what is known, what is not, and that the two are never mixed; prices by kind and date."""

from __future__ import annotations

import pytest

from trnlab.chips import prices
from trnlab.chips.catalog import TARGETS
from trnlab.fleet.gpus import catalogue
from trnlab.fleet.gpus.utilisation import NAMES, anchors, class_of, spread, utilisation
from trnlab.fleet.models.configurations import model

GPUS = catalogue.accelerators()


def test_every_anchor_is_a_share_with_a_source():
    for anchor in anchors():
        assert 0 < anchor.mfu < 1, anchor
        assert anchor.source
        assert anchor.tag in catalogue.TAGS
        assert anchor.form in GPUS[anchor.accelerator].peaks


def test_a_throughput_becomes_the_utilisation_that_its_authors_print():
    """llm-foundry prints 46.44 % for 7B on 8 H100 at 2048, with attention's masked half; a plan counts without it."""
    found = next(a for a in anchors() if a.accelerator == "h100" and a.parameters == 6658859008)
    masked = 6.0 * 32 * 4096 * 2048 * 10643 / 989e12
    assert found.mfu + masked == pytest.approx(0.4644, abs=0.002)


def test_a_published_size_is_given_as_it_was_published():
    found = utilisation("vision", GPUS["v100"], "bf16", 86e6)
    assert found.value == found.anchors[0].mfu
    assert found.low == pytest.approx(found.value * (1 - spread()))
    assert "arXiv:2012.12877" in found.basis


def test_between_two_sizes_the_share_lies_between_theirs():
    sizes = [utilisation("decoder", GPUS["a100-80"], "bf16", n) for n in (30e9, 40e9, 64e9)]
    values = [u.value for u in sizes]
    assert min(values[0], values[2]) <= values[1] <= max(values[0], values[2])


@pytest.mark.parametrize(
    ("kind", "name", "form", "size"),
    [
        ("vision", "h100", "bf16", 86e6),
        ("decoder", "b200", "bf16", 8e9),
        ("decoder", "tpu-v6e", "bf16", 8e9),
        ("encoder", "a100-80", "bf16", 10e6),
        ("experts", "h100", "bf16", 37e9),
        ("convolution", "h100", "bf16", 25e6),
    ],
)
def test_where_nothing_is_published_there_is_a_band_and_no_figure(kind, name, form, size):
    found = utilisation(kind, GPUS[name], form, size)
    assert found.value is None
    assert not found.published
    assert 0 < found.low < found.high < 1
    assert f"nothing is published for {NAMES[kind]} of" in found.basis
    assert "assumed" in found.basis


def test_of_sizes_that_nobody_published_nothing_much_is_promised():
    found = utilisation("vision", GPUS["a100-80"], "bf16", 9352)
    assert found.value is None
    assert found.low < 1e-4 < found.high
    assert "next to nothing" in found.basis


def test_classes_of_models():
    names = {
        "llama3-8b": "decoder",
        "mixtral-8x7b": "experts",
        "bert-large": "encoder",
        "vit-base": "vision",
        "t5-base": "pair",
    }
    assert {name: class_of(model(name)) for name in names} == names


def test_every_price_is_of_an_instance_that_is_known_and_says_when_and_where_from():
    known = {*TARGETS, *catalogue.instances()}
    for price in prices.all_of_them():
        assert price.instance in known, price
        assert price.kind in prices.KINDS
        assert price.low <= price.usd_per_hour <= price.high
        assert all((price.date, price.source)), price
        assert price.tag in catalogue.TAGS


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn2.48xlarge", "inf2.xlarge", "p5.48xlarge"])
def test_the_price_to_reckon_with_is_the_newest_of_the_first_kind_there_is(name):
    price = prices.chosen(name)
    assert price == next(iter(prices.latest(name).values()))
    assert price.usd(10.0) == 10.0 * price.usd_per_hour
    if name in TARGETS:
        assert TARGETS[name].price == price


def test_only_prices_of_one_kind_are_compared_and_the_newest():
    pairs = prices.alike("trn2.48xlarge", "p5.48xlarge")
    assert [(a.kind, b.kind) for a, b in pairs] == [("capacity block",) * 2]
    assert prices.latest("p5.48xlarge")["on-demand"].usd_per_hour == 55.04
    assert [p.usd_per_hour for p in prices.history("p5.48xlarge") if p.kind == "on-demand"] == [55.04, 98.32]
    for name in catalogue.instances():
        assert all(p.date and p.source and p.tag in catalogue.TAGS for p in prices.history(name))

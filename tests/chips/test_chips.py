# SPDX-License-Identifier: Apache-2.0
"""Chips are data: found by name, complete, sourced, and the same after a trip through TOML."""

from __future__ import annotations

import csv
import tomllib
from importlib.resources import files

import pytest

from trnlab import chips
from trnlab.chips import Confidence, Figure, render
from trnlab.errors import UsageError
from trnlab.units import GIB

ALL = [chips.get(name) for name in chips.NAMES]
ids = chips.NAMES


def test_unknown_names_list_what_exists_and_guess():
    with pytest.raises(UsageError, match="TRN101") as error:
        chips.get("trn9")
    assert "trn1, trn2" in str(error.value)
    assert "did you mean" in str(error.value)
    with pytest.raises(UsageError) as error:
        chips.target("trn1.2xlage")
    assert "did you mean 'trn1.2xlarge'" in str(error.value)
    with pytest.raises(UsageError):
        chips.target("")


MAY_BE_NOTHING = ("dma.read_stall", "dma.trigger_lane", "dma.turnaround", "dma.wake_gpsimd", "sync.profiler")


@pytest.mark.parametrize("chip", ALL, ids=ids)
def test_every_figure_has_a_unit_a_source_and_a_sensible_value(chip):
    table = dict(chips.figures(chip))
    assert len(table) > 60
    for path, figure in table.items():
        assert isinstance(figure, Figure), path
        assert figure.value > 0 or path in MAY_BE_NOTHING, path
        assert figure.unit, path
        assert len(figure.source) > 5, path
        assert isinstance(figure.confidence, Confidence), path
    assert all(figure.confidence is Confidence.ASSUMED for _, figure in chips.assumed(chip))


@pytest.mark.parametrize("chip", ALL, ids=ids)
def test_toml_loses_nothing(chip):
    text = chips.to_toml(chip)
    assert chips.from_toml(text) == chip
    assert tomllib.loads(text)["name"] == chip.name
    assert hash(chips.from_toml(text)) == hash(chip)


def test_toml_that_is_no_chip_is_refused():
    good = chips.to_toml(chips.get("trn2"))
    for bad in ("", "name = ", good.replace('"hwdge"', '"teleport"'), good.replace("documented", "guessed")):
        with pytest.raises(UsageError, match="TRN103"):
            chips.from_toml(bad)


@pytest.mark.parametrize("chip", ALL, ids=ids)
def test_peak_flops_follow_from_clock_and_array(chip):
    """The published peaks are 128 x 128 multiply-adds a cycle, to the digits that are published."""
    for dtype in ("bfloat16", "float32"):
        engine = chip.tensor
        computed = 2 * 128 * 128 * engine.clock.value / engine.passes.of(dtype).value
        assert chip.peak_flops(dtype) == pytest.approx(computed, rel=0.03)


def test_memory_sizes():
    trn1, trn2 = chips.get("trn1"), chips.get("trn2")
    assert trn1.num_partitions == trn2.num_partitions == 128
    assert trn1.sbuf.usable_bytes_per_partition == 176 * 1024
    assert trn1.psum.num_banks * trn1.psum.bank_bytes_per_partition == 16 * 1024
    assert trn1.hbm.capacity_bytes * trn1.cores.value == 32 * GIB
    assert trn2.hbm.capacity_bytes * trn2.cores.value == 96 * GIB


def test_features_are_a_closed_set():
    assert chips.get("trn2").has("hwdge")
    assert not chips.get("trn1").has("hwdge")
    with pytest.raises(KeyError):
        chips.get("trn1").has("hwdeg")


def test_what_if():
    chip = chips.get("trn1")
    faster = chips.with_figures(chip, {"dma.engine_bandwidth": 30e9})
    assert faster.dma.engine_bandwidth.value == 30e9
    assert faster.dma.engine_bandwidth.confidence is Confidence.ASSUMED
    assert "what-if" in faster.dma.engine_bandwidth.source
    assert faster.vector is not None
    assert faster.vector == chip.vector
    with pytest.raises(UsageError, match=r"did you mean 'dma\.engine_bandwidth'"):
        chips.with_figures(chip, {"dma.engine_bandwith": 1})


def test_targets_have_chips_and_dated_prices():
    small = chips.target("trn1.2xlarge")
    assert (small.chips, small.cores, small.chip.name) == (1, 2, "trn1")
    assert (small.price.usd_per_hour, small.price.kind) == (1.34375, "on-demand")
    wide = chips.target("trn2.48xlarge").price
    assert (wide.usd_per_hour, wide.kind) == (35.76, "capacity block")
    assert chips.target("trn2u.48xlarge").price is None
    assert chips.target("trn1").price is None  # a chip by itself
    for target in chips.TARGETS.values():
        assert target.source, target.name
        if target.price is not None:
            assert all((target.price.date, target.price.source)), target.name


def test_the_table_of_instances_is_rectangular():
    with files("trnlab.chips").joinpath("instances.csv").open(encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert {len(row) for row in rows} == {len(rows[0])}


def test_text_shows_every_figure_and_only_the_assumed_ones_on_request():
    chip = chips.get("trn2")
    full, guesses = render.describe(chip), render.describe(chip, only_assumed=True)
    for path, figure in chips.figures(chip):
        assert f"\n{path} " in full
        assert (f"\n{path} " in guesses) == (figure.confidence is Confidence.ASSUMED)
    overview = render.overview()
    assert all(name in overview for name in (*chips.NAMES, *chips.TARGETS))

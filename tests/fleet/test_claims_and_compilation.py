# SPDX-License-Identifier: Apache-2.0
"""What claims compared and when; what compiling costs and a cache saves; energy by its formula, with its band."""

from __future__ import annotations

import pytest

from trnlab.chips.prices import chosen
from trnlab.errors import UsageError
from trnlab.fleet.bills import claims, compilation, energy
from trnlab.fleet.ranges import PublishedRange


def test_a_claim_of_before_the_cut_is_shown_with_the_prices_of_its_date():
    """Trn1 against p4d in October 2022: 32.77 then, 21.96 now; for the same hours the saving is gone today."""
    (found,) = (b for b in claims.compare("trn1.32xlarge", "p4d.24xlarge", "on-demand", 1.0, 1.0) if b.comparable)
    assert found.at_claim_date[1].usd_per_hour == pytest.approx(32.7726)
    assert found.now[1].usd_per_hour == pytest.approx(21.957642)
    assert found.at_claim_date[2] == pytest.approx(1 - 21.5 / 32.7726)
    assert found.now[2] == pytest.approx(0.021, abs=0.001)


def test_claims_about_something_else_are_marked():
    found = claims.compare("trn2.48xlarge", "p5.48xlarge", "on-demand", 1.0, 1.0)
    assert [b.comparable for b in found] == [False]
    assert found[0].now is None  # trn2 has no price on demand
    assert "P5e and P5en" in str(found[0].claim)


def test_a_run_compiles_at_its_start_at_changes_and_after_restarts_unless_programs_are_kept():
    price = chosen("trn1.32xlarge")
    found = compilation.recompiles(336e6, 14, 4, 2 * 86400.0, price)
    assert (found.without, found.with_cache) == (1 + 2 + 7, 1 + 2)
    assert found.minutes.low == 13 and found.minutes.high == 40  # noqa: PT018
    assert found.saved_usd.low == pytest.approx(7 * 13 / 60 * 4 * price.usd(1))
    assert found.repeated(3).low == pytest.approx((3 * 10 - 3) * 13 / 60 * 4 * price.usd(1))


@pytest.mark.parametrize(
    ("size", "low", "high", "tag"),
    [
        (336e6, 13, 40, "documented"),
        (70e9, 30, 60, "documented"),
        (8e9, 13, 60, "documented"),
        (1e6, 13, 40, "assumed"),
        (1e12, 30, 60, "assumed"),
    ],
)
def test_minutes_are_the_published_range_and_assumed_beyond_it(size, low, high, tag):
    found = compilation.minutes(size)
    assert (found.low, found.high, found.tag) == (low, high, tag)


def test_porting_is_repaid_by_runs():
    port = compilation.PortingPayback(10, 1000.0, 500.0)
    assert (port.runs, port.break_even_days) == (20, 0.5)
    assert compilation.PortingPayback(10, 1000.0, -1.0).runs is None


def test_energy_is_the_formula_and_its_band_holds_it():
    found = energy.energy("h100", 8, 10.0)
    busy, host, over = energy.share("busy"), energy.share("host"), energy.share("site")
    assert found.accelerators.value == pytest.approx(8 * 0.7 * busy.value * 10)
    assert found.total.value == pytest.approx(found.accelerators.value * (1 + host.value) * over.value)
    assert found.total.low < found.total.value < found.total.high
    assert found.kg("eu-north-1").value == pytest.approx(found.total.value * 0.0088)


def test_a_job_that_waits_draws_less_and_twice_the_chips_twice_as_much():
    whole, half = energy.energy("trn2", 16, 1.0), energy.energy("trn2", 16, 1.0, working=0.5)
    assert half.total.value < whole.total.value
    assert energy.energy("trn2", 32, 1.0).total.value == pytest.approx(2 * whole.total.value)


def test_power_limits_accelerators():
    about, least, most = energy.within(2e9, "trn2")
    assert least < about < most
    assert about * energy.full_load("trn2").value <= 2e9 < (about + 1) * energy.full_load("trn2").value


def test_every_figure_of_energy_says_how_it_is_known():
    assert all(": " in line and "(" in line for line in energy.energy("trn1", 1, 1.0).basis)
    with pytest.raises(UsageError, match="TRN158"):
        energy.watts("trn9")
    with pytest.raises(UsageError, match=r"(?s)TRN159.*mean 'eu-west-1'"):
        energy.intensity("eu-west-11")


def test_spans_refuse_ends_that_do_not_hold_the_value():
    with pytest.raises(ValueError, match="between"):
        PublishedRange(1.0, 2.0, 3.0)

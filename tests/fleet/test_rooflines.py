# SPDX-License-Identifier: Apache-2.0
"""Rooflines of GPUs: the published table, and laws that any step has to keep."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from trnlab.errors import UsageError
from trnlab.fleet.configurations import model
from trnlab.fleet.layout import Layout
from trnlab.fleet.others import catalogue, efficiency
from trnlab.fleet.others.roofline import Job, Software, activations, step
from trnlab.validation import gpus

P5 = catalogue.instance("p5.48xlarge")


def job(**changes):
    layout = changes.pop("layout", Layout(8, 2, 2, 1, recompute="none"))
    made = {"model": model("llama3-8b"), "instance": P5, "batch": 64, "sequence": 8192}
    return Job(layout=layout, **made | changes)


def test_the_table_of_megatron_is_met_with_nothing_fitted():
    """Mean 5 %, worst 12 % (the eight rows of arXiv:2205.05198, table 5)."""
    errors = [abs(row.error) for row in gpus.load() if row.table == "Megatron"]
    assert len(errors) == 8
    assert mean(errors) < 0.05
    assert max(errors) < 0.12


def test_sequence_parallel_with_selective_recomputation_gains_what_was_published():
    """29 % faster at 530B, a time that neither side's absolute error touches much."""
    slow, fast = (row for row in gpus.load() if row.name == "530B")
    assert slow.predicted / fast.predicted == pytest.approx(slow.measured / fast.measured, rel=0.05)


def test_causes_add_up_to_the_step():
    found = step(job())
    assert sum(found.seconds.values()) == pytest.approx(found.total)
    assert 0 < found.exchange < 1
    assert 0 < found.mfu < 1


@pytest.mark.parametrize("change", ["peaks", "bandwidth", "link"])
def test_better_hardware_is_never_slower(change):
    gpu = P5.accelerator
    better = {
        "peaks": replace(gpu, peaks={form: 2 * peak for form, peak in gpu.peaks.items()}),
        "bandwidth": replace(gpu, bandwidth=2 * gpu.bandwidth), "link": replace(gpu, link=2 * gpu.link),
    }[change]  # fmt: skip
    assert step(job(instance=replace(P5, accelerator=better))).total < step(job()).total
    assert step(job(instance=replace(P5, scaleout=2 * P5.scaleout))).total < step(job()).total


def test_the_bubble_is_that_of_the_formula():
    """(p - 1) / (v m) of the work that is in the pipeline (Narayanan et al. 2021); interleaving divides it."""
    one = step(job(layout=Layout(1, 4, 2, 1), batch=32)).seconds["bubble"]
    two = step(job(layout=Layout(1, 4, 2, 1, 2), batch=32)).seconds["bubble"]
    assert one == pytest.approx(2 * two)


def test_activations_are_those_of_the_published_equations():
    """Korthikanti et al. 2022, table 2, with a / h for 22B: 34 s b h / t for selective, 2 s b h for full."""
    block, size = model("gpt3-175b").stacks[0][1], 2048 * 12288
    written = Software(fused=False)
    assert activations(block, Layout(8, recompute="selective"), 2048, written) == 34 * size / 8
    assert activations(block, Layout(8, recompute="none"), 2048, written) == size * (34 + 5 * 96 * 2048 / 12288) / 8
    alone = replace(written, sequence_parallel=False)
    assert activations(block, Layout(8, recompute="full"), 2048, alone) == 2 * size
    assert activations(block, Layout(8, recompute="none"), 2048, alone) == size * (
        10 + 24 / 8 + 5 * 96 * 2048 / 12288 / 8
    )


def test_an_accelerator_without_a_published_product_says_so():
    known, unknown = (efficiency.product(catalogue.accelerators()[name], "bf16") for name in ("h100", "tpu-v5p"))
    assert known.published
    assert not unknown.published
    assert "assumed" in unknown.source
    assert step(job(instance=catalogue.instance("tpu-v5p-8"))).assumed


def test_what_has_no_roofline_is_refused():
    with pytest.raises(UsageError, match="TRN157"):
        step(job(model=model("mixtral-8x7b")))
    with pytest.raises(UsageError, match="TRN155"):
        step(job(instance=catalogue.instance("p4d.24xlarge"), form="fp8"))
    with pytest.raises(UsageError, match=r"(?s)TRN156.*mean 'p5\.48xlarge'"):
        catalogue.instance("p5.48xlrge")


def test_reports_tell_checks_from_what_is_not_independent():
    text = gpus.report(gpus.load())
    assert "BLOOM" in text
    assert "Calculon" in text
    assert {row["used_for"] for row in gpus.to_json(gpus.load())} == {"check"}

# SPDX-License-Identifier: Apache-2.0
"""The measurements are well formed, the model meets them, and the report says how well."""

from __future__ import annotations

import json
import re
from statistics import median

import numpy as np
import pytest

from trnlab import chips
from trnlab.chips import Confidence
from trnlab.chips.sources import PROFILES as PROFILES_SOURCE
from trnlab.cli.main import main
from trnlab.sim.timing import order, time_routine
from trnlab.units import cycles_to_ps
from trnlab.validation import Split, load, report, to_json, validate
from trnlab.validation.anchors import parse
from trnlab.validation.kernels import KERNELS, attention, matmul
from trnlab.validation.quantities import predict
from trnlab.validation.sources import readings

TRN2 = chips.get("trn2")
MEASUREMENTS = load()
PROFILES = [m for m in MEASUREMENTS if m.group == "profiles"]


def errors(results, wanted):
    return [abs(r.error) for r in results if r.anchor.quantity.startswith(wanted)]


def test_every_measurement_names_a_chip_a_kernel_and_a_source():
    assert len({m.name for m in MEASUREMENTS}) == len(MEASUREMENTS) > 40
    for m in MEASUREMENTS:
        assert m.chip in chips.NAMES
        assert m.kernel in KERNELS
        assert m.source
        assert m.anchors
        assert all(a.value > 0 for a in m.anchors)


ORDERED = ("total", "active", "span")  # quantities that depend on the order of a kernel's instructions


def test_instructions_of_long_sequences_are_checks():
    assert {a.split for m in MEASUREMENTS for a in m.anchors} == set(Split)
    for m in PROFILES:
        wanted = Split.CHECK if m.sizes["seq"] > 512 else Split.CALIBRATION
        assert {a.split for a in m.anchors if not a.quantity.startswith(ORDERED)} == {wanted}, m.name


def test_what_depends_on_an_order_that_was_chosen_is_a_split_of_its_own():
    """Matmuls, Mamba and profiled attention kernels; not single instructions, and no sequence without a profile."""
    for m in MEASUREMENTS:
        chosen = m.kernel.startswith(("matmul_", "mamba")) or m.sizes.get("seq", 2048) < 2048
        for a in m.anchors:
            assert (a.split is Split.FITTED) == (chosen and a.quantity.startswith(ORDERED)), (m.name, a.quantity)


def test_a_fitted_schedule_counts_in_no_headline(profiles):
    lines = to_json(profiles), report(profiles)
    by_title = {entry["what"]: entry["anchors"] for entry in json.loads(lines[0])["summary"]}
    fitted = sum(r.anchor.split is Split.FITTED for r in profiles)
    assert fitted == 30
    assert sum(n for title, n in by_title.items() if title.startswith("fitted schedule")) == fitted
    assert by_title["all calibration"] + by_title["all check"] == len(profiles) - fitted
    assert sum(n for title, n in by_title.items() if title.startswith("profiles")) == len(profiles) - fitted


@pytest.fixture(scope="module")
def profiles():
    return validate(PROFILES)


def test_total_times_of_the_profiles_are_met_within_10_percent(profiles):
    assert max(errors(profiles, "total")) < 0.10


def test_single_instructions_of_the_profiles_are_met_within_10_percent_in_the_median(profiles):
    assert median(errors(profiles, "duration")) < 0.02
    assert max(errors(profiles, "duration")) < 0.12


@pytest.mark.parametrize(("engine", "limit"), [("vector", 0.10), ("scalar", 0.10), ("tensor", 0.13), ("dma", 0.10)])
def test_busy_times_of_the_profiles(profiles, engine, limit):
    """Ten percent is the aim; TensorE misses it in one of the six, for a half-rate window that falls otherwise."""
    assert max(errors(profiles, f"active {engine}")) < limit


def test_the_report_has_a_line_per_anchor_and_medians(profiles):
    text = report(profiles)
    assert sum(text.count(s.value) for s in Split) >= len(profiles)
    assert "fitted schedule: profiles, total time" in text
    data = json.loads(to_json(profiles))
    assert len(data["anchors"]) == len(profiles)
    first = data["anchors"][0]
    assert first["error"] == pytest.approx(first["predicted"] / first["measured"] - 1)
    assert {"what", "anchors", "median", "worst"} == set(data["summary"][0])


@pytest.mark.parametrize("name", ["load_per_tile", "hoisted", "blocked_free"])
def test_matmul_versions_do_the_same_work(name):
    kernel = getattr(matmul, name)
    timeline = time_routine(kernel(TRN2, m=512, k=512, n=1024), TRN2)
    flops = sum(op.flops * int((timeline.op == i).sum()) for i, op in enumerate(timeline.ops) if "pe." in op.kind)
    assert flops == 2 * 512 * 512 * 1024


def test_hoisting_and_blocking_move_less():
    kernels = (matmul.load_per_tile, matmul.hoisted, matmul.blocked_free)
    moved = []
    for kernel in kernels:
        timeline = time_routine(kernel(TRN2, m=1024, k=512, n=2048), TRN2)
        moved.append(sum(op.hbm_read * int((timeline.op == i).sum()) for i, op in enumerate(timeline.ops)))
    assert moved[0] > moved[1] > moved[2]


@pytest.mark.parametrize("seq", [512, 1024, 2048, 4096])
def test_fusing_saves_time_and_traffic(seq):
    fused, unfused = (
        time_routine(kernel(TRN2, seq=seq, dtype="bfloat16"), TRN2) for kernel in (attention.fused, attention.unfused)
    )
    assert fused.total < unfused.total
    assert sum(op.hbm_write for op in fused.ops) < sum(op.hbm_write for op in unfused.ops)


def test_the_profiler_lengthens_the_start_only():
    routine = attention.fused(TRN2, seq=512, dtype="bfloat16")
    plain, profiled = time_routine(routine, TRN2), time_routine(routine, TRN2, profiled=True)
    assert profiled.total - plain.total == round(TRN2.sync.profiler.value * 1000)
    assert (profiled.done - plain.done).min() == (profiled.done - plain.done).max() > 0


@pytest.mark.parametrize("phase", [0, 1_000_000, 3_000_000])
def test_half_rate_windows_only_make_the_array_slower(phase):
    """Never faster than full rate, never slower than half; after long work the array runs at full rate."""
    routine = KERNELS["matmuls"](TRN2, columns=512, stationary=128, dtype="bfloat16", count=200)
    full, paced = time_routine(routine, TRN2), time_routine(routine, TRN2, window_phase=phase)
    took = [t.done[-1] - t.start[0] for t in (full, paced)]
    assert took[0] < took[1] < 2 * took[0]
    assert paced.end[-1] - paced.start[-1] == full.end[-1] - full.start[-1]
    issue = cycles_to_ps(TRN2.tensor.issue.value, TRN2.tensor.clock.value)  # vanishes at half rate
    assert paced.end[0] - paced.start[0] == pytest.approx(2 * (full.end[0] - full.start[0] - issue), abs=2)
    latency = cycles_to_ps(TRN2.tensor.half_rate_latency.value, TRN2.tensor.clock.value)
    assert paced.done[0] - paced.end[0] == pytest.approx(latency, abs=2)


@pytest.mark.parametrize(("share", "rate"), [(0.36, 2), (0.39, 1)])
def test_a_window_is_judged_by_its_work(share, rate):
    """Windows of matmuls with idle time between them: what was done, not how long it took, decides about the next."""
    window = TRN2.tensor.rate_window.value * 1000
    parameters = np.zeros(order.PARAMETERS, np.int64)
    parameters[order.WINDOW], parameters[order.FULL_ABOVE] = round(window), round(window * 0.375)
    for half in (0, 1):
        state = np.array([round(window), 0, half], np.int64)
        work = round(window * share)
        assert order._paced(0, work, 2 * work, parameters, state) == work * (1 + half)
        assert order._paced(round(window), 1000, 2000, parameters, state) == 1000 * rate


def test_quantities_that_do_not_exist_are_refused():
    timeline = time_routine(KERNELS["activate_chain"](TRN2, length=3), TRN2)
    for quantity in ("speed", "duration pe.matmul", "duration not a name"):
        with pytest.raises(ValueError, match=r"."):
            predict(quantity, timeline)


def test_a_measurement_without_a_split_is_refused():
    with pytest.raises(ValueError, match="missing"):
        parse('[[measurement]]\nanchors = [{ quantity = "total", value = "1 us" }]')


def test_the_command_prints_a_table_and_json(capsys):
    assert main(["validate", "--only", "tensor_tensor"]) == 0
    assert "tensor_tensor of 8192 fp32 (trn1)" in capsys.readouterr().out
    assert main(["validate", "--json", "--only", "tensor_tensor"]) == 0
    assert json.loads(capsys.readouterr().out)["anchors"][0]["unit"] == "s"
    assert main(["validate", "--only", "no such thing"]) == 2
    assert "TRN126" in capsys.readouterr().err
    assert main(["validate", "--only", "mamba v9"]) == 2
    assert "mamba v1, " in capsys.readouterr().err.lower(), "near names are told"


def cited(source):
    """What a source points at: runs, pictures, tables and versions of kernels."""
    return set(
        re.findall(
            r"\w+_s\d+|v\d-\w+|nki-dma-intro-\d|fig\d+|table of [\w ]+|(?:first|second|third|fourth|fifth) version",
            source,
        )
    )


def test_no_figure_of_a_chip_cites_what_only_checks():
    """Figures come from documents and calibration anchors; runs, pictures and tables of checks are not theirs."""
    used = {split: set() for split in Split}
    for m in MEASUREMENTS:
        for anchor in m.anchors:
            used[anchor.split] |= cited(m.source)
    only_checks = (used[Split.CHECK] | used[Split.FITTED]) - used[Split.CALIBRATION]
    assert {"fused_fp32_s1024", "baseline_bf16_s1024", "v2-pe", "v3-pe"} <= only_checks
    for name in chips.NAMES:
        for path, figure in chips.figures(chips.get(name)):
            assert not cited(figure.source) & only_checks, (name, path)
            if "trainium-kernel-fusion" in figure.source:
                assert "of 512 keys" in figure.source, (name, path)


# Figures that cite the calibration profiles and are not read off them by `readings`: what they rest on is told in the
# figure's source and in docs/validation.md.
NOT_READ_AGAIN = {
    "tensor.full_rate_above",
    "tensor.transpose_passes.float32",
    "tensor.transpose_passes.tfloat32",
    "tensor.transpose_passes.bfloat16",
    "tensor.transpose_passes.float16",
    "tensor.transpose_passes.float8_e4m3",
    "tensor.transpose_passes.float8_e5m2",
    "dma.read_rate",
    "dma.read_stall",
    "dma.queue_interval",
    "dma.read_latency",
    "dma.cast_rate",
}
CLOSE = 0.03


def test_figures_that_cite_the_profiles_are_what_was_read_off_them():
    """Each lies among the middle 90 % of what `trnlab validate --readings` found, or within 3 % of the median."""
    found = {r.figure: r for r in readings.recorded()}
    cited_here = {p: f for p, f in chips.figures(TRN2) if f.source.startswith(PROFILES_SOURCE)}
    assert set(cited_here) - set(found) <= NOT_READ_AGAIN
    for path in set(cited_here) & set(found):
        value, r = cited_here[path].value, found[path]
        assert r.low <= value <= r.high or abs(value / r.median - 1) <= CLOSE, (path, value, r)


@pytest.mark.parametrize("name", ["trn2", "trn3"])
def test_a_figure_of_another_generation_is_assumed(name):
    """Pages about an earlier chip document that chip."""
    older = {
        "trn2": ("trainium_inferentia2_arch",),
        "trn3": ("trainium_inferentia2_arch", "trainium2_arch", "isa_docs.md"),
    }
    for path, figure in chips.figures(chips.get(name)):
        if figure.confidence is Confidence.DOCUMENTED:
            assert not any(page in figure.source for page in older[name]), (path, figure.source)

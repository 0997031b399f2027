# SPDX-License-Identifier: Apache-2.0
"""What is not covered is listed, and figures of chips rest on what they may rest on."""

from __future__ import annotations

import json
import re

import pytest

from trnlab import chips
from trnlab.chips import Confidence
from trnlab.chips.sources import PROFILES as PROFILES_SOURCE
from trnlab.cli.main import main
from trnlab.validation import anchors, sources
from trnlab.validation.anchors import Split, Uncovered, parse
from trnlab.validation.sources import readings

TRN2 = chips.get("trn2")
MEASUREMENTS = anchors.load()


def test_every_measurement_names_a_chip_a_source_and_why_it_is_not_covered():
    assert len({m.name for m in MEASUREMENTS}) == len(MEASUREMENTS)
    assert {m.why for m in MEASUREMENTS} == set(Uncovered)
    for m in MEASUREMENTS:
        assert m.chip in chips.NAMES
        assert m.source
        assert m.anchors
        assert all(a.value > 0 for a in m.anchors)


def test_what_is_covered_in_part_is_in_the_catalogue_and_its_total_is_compared():
    catalogue = {k.name.partition(": ")[2].lower() for k in sources.load()}
    for m in MEASUREMENTS:
        covered = m.name.removesuffix(", profiled").lower() in catalogue
        assert covered == (m.why is Uncovered.ONLY_TOTAL), m.name
        assert not (covered and any(a.quantity == "total" for a in m.anchors)), m.name


def test_instructions_of_long_sequences_are_checks():
    profiles = [m for m in MEASUREMENTS if m.source.startswith("profile ")]
    assert len(profiles) == 6
    for m in profiles:
        wanted = Split.CALIBRATION if "512 keys" in m.name else Split.CHECK
        assert {a.split for a in m.anchors} == {wanted}, m.name


@pytest.mark.parametrize(("change", "message"), [("", "missing"), ('split = "fitted"', "fitted")])
def test_a_measurement_without_a_split_that_there_is_is_refused(change, message):
    about = f'name = "a"\nchip = "trn2"\nsource = "b"\nwhy = "no source"\n{change}\n'
    with pytest.raises(ValueError, match=message):
        parse(f'[[measurement]]\n{about}anchors = [{{ quantity = "total", value = "1 us" }}]')


def test_the_command_lists_what_is_not_covered_and_why(capsys):
    assert main(["validate", "--only", "tensor_tensor"]) == 0
    out = capsys.readouterr().out
    assert "no source" in out
    assert "tensor_tensor of 8192 fp32 (trn1)" in out
    assert "15 us" in out
    assert main(["validate", "--json", "--only", "mamba v1, 4096"]) == 0
    found = json.loads(capsys.readouterr().out)
    (entry,) = found["not_covered"]
    assert (entry["why"], entry["unit"], entry["measured"]) == ("only total", "share", pytest.approx(0.9216))
    assert [row["id"] for row in found["from_sources"]["kernels"]] == ["mamba_v1_c4096_s512"]


def test_names_that_there_are_not_and_records_of_nothing_are_refused(capsys):
    assert main(["validate", "--only", "no such thing"]) == 2
    assert "TRN126" in capsys.readouterr().err
    assert main(["validate", "--only", "mamba v9"]) == 2
    assert "mamba v1, " in capsys.readouterr().err.lower(), "near names are told"
    assert main(["validate", "--record"]) == 2
    assert "TRN170" in capsys.readouterr().err


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
    for k in sources.load():
        used[k.split] |= cited(k.profile)
    only_checks = used[Split.CHECK] - used[Split.CALIBRATION]
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

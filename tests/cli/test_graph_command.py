# SPDX-License-Identifier: Apache-2.0
"""`trnlab graph` and `trnlab program`: what they print they read again, and what breaks a rule is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from trnlab.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs/graphs.md").read_text()
GRAPH, ROUTINE = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[1] for kind in ("graph", "routine"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRNLAB_TARGET", raising=False)
    (tmp_path / "layer.graph").write_text(GRAPH)
    (tmp_path / "scale.routine").write_text(ROUTINE)
    return tmp_path


def printed(capsys, *arguments):
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    assert main(list(arguments)) == 2
    return capsys.readouterr().err


def test_the_texts_of_the_page_are_what_is_printed(folder, capsys):
    assert printed(capsys, "graph", "layer.graph") == GRAPH
    assert printed(capsys, "program", "scale.routine") == ROUTINE


def test_checks_alone_say_sizes(folder, capsys):
    said = printed(capsys, "graph", "--verify", "layer.graph")
    assert said == "graph layer: 3 ops, 2 inputs, 1 output; no rule is broken\n"
    said = printed(capsys, "program", "--verify", "scale.routine")
    assert said == (
        "routine scale for trn2: 3 instructions, 256 bytes of SBUF in each partition; no rule is broken\n"
    )


def test_stablehlo_comes_in_and_goes_out(folder, capsys):
    jax = pytest.importorskip("jax")
    (folder / "m.mlir").write_text(jax.jit(lambda x: jax.numpy.tanh(x) + 1).lower(np.ones((4, 8), "f4")).as_text())
    text = printed(capsys, "graph", "m.mlir")
    assert text.startswith("graph @m(%arg0: tensor<4x8xfloat32>)")
    assert "loc(" in printed(capsys, "graph", "--locations", "m.mlir")
    (folder / "m.graph").write_text(text)
    assert printed(capsys, "graph", "m.graph") == text
    module = printed(capsys, "graph", "--stablehlo", "m.graph")
    assert "stablehlo.tanh" in module
    (folder / "again.mlir").write_text(module)
    assert printed(capsys, "graph", "again.mlir").split("\n", 1)[1].count("tanh") == 1


def test_a_graph_becomes_a_program_that_is_read_back(folder, capsys):
    text = printed(capsys, "program", "--target", "trn1.2xlarge", "layer.graph")
    assert text.startswith("program @layer for trn1")
    assert "tensor: nc_matmul" in text
    (folder / "layer.txt").write_text(text)
    assert printed(capsys, "program", "layer.txt") == text
    assert "for trn1: " in printed(capsys, "program", "--verify", "layer.txt")
    assert "TRN120" in refused(capsys, "program", "layer.graph")


@pytest.mark.parametrize(
    ("command", "file", "old", "new", "code"),
    [
        ("graph", "layer.graph", "maximum %0", "maximum %9", "TRN307"),
        ("graph", "layer.graph", "[1]", "[0]", "TRN302"),
        ("program", "scale.routine", "src=%x", "src=%y", "TRN420"),
        ("program", "scale.routine", "  sync: dma_copy dst=%t, src=%x\n", "", "TRN424"),
        ("program", "scale.routine", "sbuf 256", "sbuf 100", "TRN422"),
        ("program", "scale.routine", "for trn2", "for trn9", "TRN101"),
    ],
)
def test_what_breaks_a_rule_is_refused(folder, capsys, command, file, old, new, code):
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert code in refused(capsys, command, "--verify", file)


def test_what_is_none_of_these_is_refused(folder, capsys):
    assert "TRN123" in refused(capsys, "graph", "missing.graph")
    assert "TRN123" in refused(capsys, "program", ".")
    pytest.importorskip("jaxlib")
    (folder / "words").write_text("neither of them\n")
    assert "TRN230" in refused(capsys, "graph", "words")
    assert "TRN230" in refused(capsys, "program", "--target", "trn2", "words")

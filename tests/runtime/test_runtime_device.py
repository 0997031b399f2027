# SPDX-License-Identifier: Apache-2.0
"""Compiling once, saying why when it has to be done again, running in place, and refusing what does not fit."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from runtime_samples import TARGET, graph

from trnlab import chips, documents
from trnlab.errors import CapacityError, NumericsError, RunError
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.canonical import Difference
from trnlab.graph.flops import model_flops
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.runtime.cache import report as cache_report
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.cache.fingerprint import causes, fingerprint
from trnlab.runtime.device import Array, Loaded, compile_graph
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session


def session(cache: Path | None = None, precision: str = "bf16", target: str = TARGET) -> Session:
    return Session(chips.target(target), precision, cache=Cache(cache) if cache is not None else None)


def compiled(s: Session, **form: object) -> Executable:
    return compile_graph(graph(**form), s)  # type: ignore[arg-type]


def arrays(rows: int = 8) -> list[Array]:
    return [np.ones((rows, 4), np.float32), np.full(4, 3, np.float32)]


def test_a_graph_is_compiled_once_per_process_and_once_per_cache(tmp_path: Path) -> None:
    first = session(tmp_path)
    miss = compiled(first)
    assert (miss.cache, compiled(first) is miss) == ("miss", True)
    hit = compiled(session(tmp_path))
    assert hit.cache == "hit"
    assert hit.metadata == miss.metadata
    assert hit.program.routines[0].works == miss.program.routines[0].works
    assert compiled(session()).cache == "off"


def test_what_changed_is_said_when_a_graph_is_compiled_again(capsys: pytest.CaptureFixture[str]) -> None:
    s = session()
    compiled(s, rows=8)
    assert capsys.readouterr().err == ""
    compiled(s, rows=16)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "compiling 'step' again, because of input 0 'x' shape: (8, 4) -> (16, 4)" in said
    compiled(s, rows=16, factor=3.0)
    assert "constant: 2.0 : tensor" in capsys.readouterr().err
    compiled(s, rows=8)  # already compiled in this process
    s.precision = "fp32"
    compiled(s, rows=8)
    assert "because of option precision: bf16 -> fp32" in capsys.readouterr().err


def test_why_a_graph_is_compiled_again_is_two_lines_however_much_changed() -> None:
    """Inputs and settings, since the rest follows from them; else the first ops, of which what is long is cut."""
    operands = ", ".join("tensor<8x64xf32>" for _ in range(20))
    ops = [Difference("op", f"op at train.py:{i}", f"concatenate({operands})", f"add({operands})") for i in range(20)]
    inputs = [Difference("input", f"input {i} 'x{i}' shape", "(8, 64)", "(16, 64)") for i in range(3)]
    said = causes(["option precision: bf16 -> fp32"], [*inputs, *ops])
    assert said == "option precision: bf16 -> fp32; input 0 'x0' shape: (8, 64) -> (16, 64); and 2 more"
    cut = "op at train.py:{0}: concatenate(tensor<8x64xf32>, tensor ... -> add(tensor<8x64xf32>, tensor<8x64xf3 ..."
    assert causes([], ops) == f"{cut.format(0)}; {cut.format(1)}; and 18 more"
    longer = Difference("op", "op at train.py:1", f"add({operands})", f"add({operands}, tensor<f32>)")
    assert causes([], [longer]) == "op at train.py:1: add with other types or attributes"


def test_the_key_depends_on_all_that_decides_and_on_nothing_else() -> None:
    trn1, trn2, bf16 = chips.get("trn1"), chips.get("trn2"), {"precision": "bf16"}
    base = fingerprint(graph(), trn1, bf16).key
    renamed = graph()
    renamed.inputs[0].name = "other"
    assert fingerprint(graph(), trn1, dict(bf16)).key == base
    assert fingerprint(renamed, trn1, bf16).key == base
    faster = chips.with_figures(trn1, {"tensor.clock": 3e9})
    others = [
        fingerprint(graph(rows=9), trn1, bf16),
        fingerprint(graph(factor=2.5), trn1, bf16),
        fingerprint(graph(), trn2, bf16),
        fingerprint(graph(), faster, bf16),
        fingerprint(graph(), trn1, {"precision": "fp32"}),
    ]
    assert len({base, *(f.key for f in others)}) == 6


def test_outputs_are_new_arrays_unless_they_replace_an_input() -> None:
    s = session()
    x, b = arrays()
    (y,) = Loaded(compiled(s), s).run([x, b])
    assert y is not x
    assert (y == 5).all()
    assert (x == 1).all()
    (y,) = Loaded(compiled(s, donate=True, name="donating"), s).run([x, b])
    assert y is x
    assert (x == 5).all()
    assert s.counters.instructions == 2 * compiled(s).program.num_instructions


def test_a_value_that_is_not_finite_is_told_on_request_only() -> None:
    x, b = arrays()
    x[3, 2] = np.nan
    s = session()
    Loaded(compiled(s), s).run([x, b])
    s = session()
    s.check_nan = True
    with pytest.raises(NumericsError):
        Loaded(compiled(s), s).run([x, b])


def test_stochastic_rounding_is_reproducible_and_differs_between_steps_and_seeds() -> None:
    builder = GraphBuilder("narrow")
    builder.output(builder.convert(builder.input("x", (8, 64), float32), bfloat16), "y")
    x = np.full((8, 64), 1.003, np.float32)

    def two_steps(seed: int) -> list[bytes]:
        s = session()
        s.stochastic_rounding, s.seed = True, seed
        loaded = Loaded(compile_graph(builder.graph, s), s)
        return [loaded.run([x])[0].tobytes() for _ in range(2)]

    assert two_steps(1) == two_steps(1)
    assert len({*two_steps(1), *two_steps(2)}) == 4


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (arrays()[:1], "TRN820"),
        (arrays(9), "TRN821"),
        ([arrays()[0].astype(np.float64), arrays()[1]], "TRN821"),
        ([np.ones((4, 8), np.float32).T, arrays()[1]], "TRN821"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(given: list[Array], code: str) -> None:
    s = session()
    with pytest.raises(RunError) as caught:
        Loaded(compiled(s), s).run(given)
    assert caught.value.code == code


def test_what_cannot_fit_is_refused_before_compiling_with_the_largest_tensors() -> None:
    s = session()
    with pytest.raises(CapacityError) as caught:
        compiled(s, rows=1 << 31)
    message = str(caught.value)
    assert caught.value.code == "TRN510"
    assert "16 GiB" in message
    assert "x float32[2147483648, 4] 32 GiB" in message
    assert s.executables == {}


def test_cache_explain_names_what_differs_from_the_nearest_entry(tmp_path: Path) -> None:
    s = session(tmp_path)
    first, second = compiled(s, rows=8), compiled(s, rows=16)
    assert s.cache is not None
    for i, executable in enumerate((first, second)):
        path = tmp_path / "v1" / f"{executable.key}.trnx"
        os.utime(path, (i, i))
    text = documents.text(cache_report.explain(s.cache, second.key[:10]))
    differences = text.split("what differs:\n")[1].splitlines()
    assert differences[0].strip() == "input x: float32[8, 4] -> float32[16, 4]"
    assert first.key[:12] in text
    assert "the first entry" in documents.text(cache_report.explain(s.cache, first.key))


def test_model_flops_counts_matrix_products_only() -> None:
    b = GraphBuilder("g")
    x, w = b.input("x", (8, 16), float32), b.input("w", (16, 32), float32)
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    b.output(b.add(b.op("dot_general", x, w, **dims, dtype=float32), 1.0), "y")
    assert model_flops(b.build()) == 2 * 8 * 16 * 32

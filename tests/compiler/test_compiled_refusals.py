# SPDX-License-Identifier: Apache-2.0
"""What the compiler cannot lower is said for the whole graph at once; wide heads of attention are spelled out."""

from __future__ import annotations

import numpy as np
import pytest
from compiled import build, check_graph, execute, random

from trnlab.compiler import supported
from trnlab.errors import Location, UnsupportedOpError


@pytest.fixture
def no_division(monkeypatch):
    """A chip on which no instruction divides exactly: today's have a way for each op and format."""
    found = supported.select
    lacks = ("divide", "remainder")
    monkeypatch.setattr(supported, "select", lambda op, known: None if op.name in lacks else found(op, known))


@pytest.mark.usefixtures("no_division")
def test_all_unsupported_ops_at_once():
    """Each with its op, its types and the user's line."""

    def function(b, x, i):
        with b.at(Location("train.py", 12), "aten.scatter"):
            attrs = dict(b.scatter_add_rows(b.constant(2), x, 9).op.attrs, kind="assign")
            written = b.append("scatter", (b.constant(0.0, shape=(9, 7)), b.constant(2), x), attrs).results[0]
        with b.at(Location("train.py", 34), "aten.remainder"):
            return written, b.remainder(i, 3.0)

    inputs = random(7), random(9)
    with pytest.raises(UnsupportedOpError) as caught:
        execute(build(function, *inputs), inputs)
    for part in ("aten.scatter", "train.py:12", "aten.remainder", "train.py:34", "tensor<9xfloat32>"):
        assert part in str(caught.value)


@pytest.mark.usefixtures("no_division")
def test_what_is_exact_on_no_engine_has_a_code_of_its_own():
    """And says which format, and what to do."""
    x = np.array([1, 2], np.float32)
    with pytest.raises(UnsupportedOpError) as caught:
        execute(build(lambda b, x: b.divide(x, 3.0), x), [x])
    assert caught.value.code == "TRN220"
    assert "divide of float32" in str(caught.value)
    assert "int32" in caught.value.remedy


@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_wide_heads(causal):
    """200 columns a head: more rows than the PE array contracts over at once."""
    shapes = [(1, 2, 65, 200)] * 4

    def function(b, q, k, v, g):
        out, lse = b.attention(q, k, v, causal=causal)
        return (out, lse, *b.attention_backward(g, q, k, v, out, lse, causal=causal))

    inputs = [random(*shape, seed=i) for i, shape in enumerate(shapes)]
    check_graph(build(function, *inputs), inputs, tolerance=2e-5)


@pytest.mark.parametrize("key_heads", [1, 4])
def test_attention(key_heads):
    """Through the kernels, queries sharing key heads or not, with what comes before and after as views."""

    def function(b, x, y):
        q = b.transpose(b.reshape(x, (2, 65, 4, 16)), (0, 2, 1, 3))
        k, v = (b.transpose(b.reshape(t, (2, 65, key_heads, 16)), (0, 2, 1, 3)) for t in (y, b.tanh(y)))
        out, lse = b.attention(q, k, v, causal=True)
        dq, dk, dv = b.attention_backward(b.tanh(out), q, k, v, out, lse, causal=True)
        flat = b.reshape(b.transpose(out, (0, 2, 1, 3)), (130, 64))
        return flat, b.reshape(b.transpose(dq, (0, 2, 1, 3)), (130, 64)), dk, b.multiply(dv, 2.0)

    inputs = [random(2, 65, 64), random(2, 65, 16 * key_heads, seed=1)]
    check_graph(build(function, *inputs), inputs, tolerance=2e-5)

# SPDX-License-Identifier: Apache-2.0
"""64-bit numbers on a chip without 64-bit formats: exact, or an error that names the line; never wrong in silence."""

import pytest
import torch
from helpers import TRN1, Traced, check, through_graph

from trnlab.errors import NumericsError, UnsupportedOpError

pytestmark = pytest.mark.torch

ENGINES = ["interpreter", TRN1]
TOP = 2**31 - 1


def long(*values):
    return torch.tensor(values, dtype=torch.int64)


BEYOND = {
    "add": (lambda x, y: x + y, (long(TOP, 1), long(1, 1))),
    "add below": (lambda x, y: x + y, (long(-TOP, 1), long(-2, 1))),
    "subtract": (lambda x, y: x - y, (long(-5, -TOP), long(1, 3))),
    "multiply": (lambda x, y: x * y, (long(3, 2**16), long(4, 2**16))),
    "negate": (lambda x, y: -x + y, (long(0, -TOP - 1), long(0, 0))),
    "sum": (lambda x, y: x.sum() + 0 * y, (long(2**30, 2**30), long(0, 0))),
    "float to int": (lambda x, y: (x.float() * 3).long(), (long(1, 2**30), long(0, 0))),
    "large float to int": (lambda x, y: (x.float() * -1e15).long(), (long(0, 9), long(0, 0))),
    "index": (lambda x, y: x.square()[y], (long(1, 2**20), long(0, 0))),
}


@pytest.mark.parametrize("on", ENGINES)
@pytest.mark.parametrize("name", BEYOND)
def test_a_result_beyond_32_bits_is_an_error_with_its_line(name, on):
    function, inputs = BEYOND[name]
    with pytest.raises(NumericsError, match="TRN210") as caught:
        through_graph(function, inputs, gradients=False, on=on)
    assert caught.value.where.file == __file__
    assert function.__code__.co_firstlineno == caught.value.where.line


WITHIN = {
    "add": (lambda x, y: x + y, (long(TOP - 1, -TOP, 7), long(1, -1, -7))),
    "multiply": (lambda x, y: x * y, (long(46340, -46340, 0), long(46340, 46340, TOP))),
    "sum": (lambda x, y: x.sum() + y.sum(-1), (long(2**30, 2**29, 2**24 + 1), long(1, 2, -3))),
    "sum that cancels": (lambda x, y: (x + y).sum(), (long(2**30, 2**30, 5), long(-(2**30), -(2**30), 1))),
    "bools": (lambda x, y: (x > y).sum(), (long(1, 5, 9), long(2, 2, 2))),
    "float to int": (lambda x, y: (x.float() / 2).long() + y, (long(5, -5, 2**24), long(0, 0, 0))),
}


@pytest.mark.parametrize("name", WITHIN)
def test_a_result_within_32_bits_is_exact(name):
    function, inputs = WITHIN[name]
    check(function, inputs, gradients=False)


def test_what_pytorch_leaves_undefined_may_be_thrown_away():
    """As T5 does: the logarithm of distance zero is cast, and another branch taken."""

    def buckets(distance):
        near = distance < 4
        far = 4 + (torch.log(distance.float() / 4) * 3).to(torch.long)
        return torch.where(near, distance, torch.min(far, torch.full_like(far, 9)))

    check(buckets, [torch.arange(12)], gradients=False)


UNWATCHED = {
    "embedding ids": lambda x: torch.nn.functional.embedding(x, torch.ones(9, 2, device=x.device)),
    "one-hot": lambda x: torch.nn.functional.one_hot(x, 9),
    "positions": lambda x: torch.arange(3, device=x.device) * 2 + 1,
    "counts": lambda x: (x > 0).sum() + (x == 3).sum(),
    "places": lambda x: x.float().argmax() + 1,
    "wrapped index": lambda x: torch.ones(4, 3, device=x.device)[x],
}


@pytest.mark.parametrize("name", UNWATCHED)
def test_numbers_that_are_known_to_be_small_cost_nothing(name):
    """Counts, positions and ids have ranges that the importer works out: the graph computes no flag."""
    traced = Traced(UNWATCHED[name], [long(0, 1, 3)])
    assert not traced.graph.checks


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**40])
def test_an_input_beyond_32_bits_is_refused_by_name(value):
    ids = long(0, 1, value)
    with pytest.raises(NumericsError, match="TRN211") as caught:
        through_graph(lambda x: x * 2, [ids], gradients=False)
    assert str(value) in str(caught.value.got)
    assert "[2]" in str(caught.value.got)


def test_32_bit_integers_wrap_as_pytorchs_do_and_are_not_watched():
    x = torch.tensor([TOP, -TOP - 1, 5], dtype=torch.int32)
    graph = check(lambda x: x + x, [x], gradients=False)
    assert not graph.checks


FLOAT64 = {
    "input": (lambda x: x.float(), torch.ones(3, dtype=torch.float64)),
    "conversion": (lambda x: x.double() * 2, torch.ones(3)),
    "factory": (lambda x: x + torch.ones(3, dtype=torch.float64, device=x.device), torch.ones(3)),
}


@pytest.mark.parametrize("name", FLOAT64)
def test_float64_is_refused_with_its_line_and_the_way_out(name):
    function, x = FLOAT64[name]
    with pytest.raises(UnsupportedOpError, match="TRN212") as caught:
        through_graph(function, [x], gradients=False)
    (op, *_) = caught.value.ops
    assert op.where.line == function.__code__.co_firstlineno
    assert "float32" in op.do


def test_float64_in_eager_mode_is_exact():
    x = torch.tensor([1 / 3, 2**-60, 1e300], dtype=torch.float64)
    got = (x.to("neuron") * 3 - 1).to("cpu")
    assert torch.equal(got, x * 3 - 1)


def test_python_numbers_do_not_make_float64():
    (got,), _, _ = through_graph(lambda x: (x * 2.5 + 1) / 3, [torch.ones(3)], gradients=False)
    assert got.dtype == torch.float32


INDEXED = {
    "index_add": lambda x, i, s: x.index_add(0, i, s),
    "scatter_add": lambda x, i, s: x.scatter_add(0, i, s),
    "index_put": lambda x, i, s: x.index_put((i,), s, accumulate=True),
    "gather": lambda x, i, s: s.gather(0, i),
}


@pytest.mark.parametrize("name", INDEXED)
def test_what_64_bit_numbers_only_index_is_not_watched(name):
    """int32 tensors wrap whatever picks their elements: no flag, and PyTorch's numbers."""
    small = torch.tensor([TOP, 5, -TOP - 1, 2**30], dtype=torch.int32)
    inputs = [torch.tensor([1, 2, 3], dtype=torch.int32), long(0, 2, 2, 0), small]
    assert all(c.rule == "index" for c in check(INDEXED[name], inputs, gradients=False).checks)

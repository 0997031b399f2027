# SPDX-License-Identifier: Apache-2.0
"""What the chip cannot run is refused with every operator, its types, the user's line and what to write instead."""

import inspect

import pytest
import torch
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.errors import UnsupportedOpError

pytestmark = pytest.mark.torch


def bad(model, x):
    y = model(x)
    a = torch.linalg.svd(y)[1].sum()
    b = y.erfinv().sum()
    c = torch.fft.fft(y.detach()).abs().sum()
    return a + b + c


@pytest.fixture
def error():
    model = nn.Linear(4, 4).to("neuron")
    with pytest.raises(UnsupportedOpError) as caught:
        neuron.capture_step(model, None, bad, [torch.ones(4, 4, device="neuron")])
    return caught.value


def line_of(text):
    lines, first = inspect.getsourcelines(bad)
    return first + next(i for i, line in enumerate(lines) if text in line)


def test_all_operators_are_named_with_their_lines(error):
    found = {op.name: op for op in error.ops}
    assert {"aten._linalg_svd", "aten.erfinv", "aten._fft_r2c"} <= set(found)
    assert found["aten.erfinv"].where.line == line_of("erfinv")
    assert found["aten._linalg_svd"].where.line == line_of("svd")
    assert found["aten._fft_r2c"].where.file == __file__
    assert found["aten.erfinv"].operands == ("float32[4, 4]",)


def test_the_message_shows_code_shapes_line_and_remedy(error):
    text = str(error)
    assert text.startswith("TRN201: ")
    for part in ("aten.erfinv(float32[4, 4])", f"{__file__}:{line_of('erfinv')}", "b = y.erfinv().sum()", "do "):
        assert part in text
    assert "complex64" in text


def test_operators_are_counted_once_each_and_their_other_places_are_named():
    def loss(model, x):
        y = model(x)
        for _ in range(3):
            y = y.erfinv()
            y = y.erfinv()
        return y.sum()

    model = nn.Linear(4, 4).to("neuron")
    with pytest.raises(UnsupportedOpError, match="1 operator cannot run") as caught:
        neuron.capture_step(model, None, loss, [torch.ones(4, 4, device="neuron")])
    assert "and  1 more places" in str(caught.value)
    assert caught.value.ops[0].reason == "it has no lowering to the chip"
    assert "before the step" in caught.value.ops[0].do


def test_reading_a_value_inside_the_step_is_refused_with_its_line():
    model = nn.Linear(4, 4).to("neuron")

    def loss(model, x):
        y = model(x).sum()
        return y * y.item()

    with pytest.raises(UnsupportedOpError, match="TRN204") as caught:
        neuron.capture_step(model, None, loss, [torch.ones(4, 4, device="neuron")])
    assert caught.value.where.file == __file__
    assert "item()" in caught.value.where.text


REFUSED = {
    "mask index": (lambda x: x[x.bool()].sum(), "TRN204"),
    "mask assignment": (lambda x: x + x.detach().index_put((x > 0,), x.detach()[0]), "torch.where"),
    "sorting many": (lambda x: x.repeat(64, 64).flatten().sort()[0], "on the host"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_refused_say_what_to_write(name):
    function, words = REFUSED[name]
    model = nn.Linear(4, 4).to("neuron")
    with pytest.raises(UnsupportedOpError, match=words):
        neuron.capture_step(model, None, lambda m, x: function(m(x)).sum(), [torch.ones(4, 4, device="neuron")])

# SPDX-License-Identifier: Apache-2.0
"""How far each function of floats may be off, in units in the last place (ulp), and how far it is.

FUNCTIONS is the table that tests enforce and that docs/functions.md is made of. A function is traced as PyTorch's
operator, compiled, and executed over a grid of hostile numbers; the reference is the same operator in float64.

An error is counted in steps of the result's format at the reference, or at `floor` where the reference is smaller.
Where the reference is infinite, NaN, or rounds to infinity, the result must be the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from helpers import Traced

from trnlab import chips
from trnlab.compiler import compile
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.numerics.dtypes import bfloat16, float16, float32
from trnlab.program import Program
from trnlab.sim.functional import run_program
from trnlab.sim.timing.timer import estimate

Array = np.ndarray[Any, Any]
FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CHIPS = ("trn1", "inf2", "trn2", "trn3")
ROWS = 128
# Of each format: bits of the significand, exponents of the smallest normal number and of the largest.
_FIGURES = {"float32": (24, -126, 127), "bfloat16": (8, -126, 127), "float16": (11, -14, 15)}


@dataclass(frozen=True)
class Function:
    """One row. ulps: bound in fp32, on the chip and in the interpreter; narrow: bound in the 16-bit formats.

    floor: errors of results below it are counted in its steps; far: the same for arguments beyond 2^13.
    of_rounded: the exact result, of a function that PyTorch defines by a number rounded to the format.
    """

    name: str
    call: Callable[..., Any]
    ulps: float
    method: str
    operands: int = 1
    floor: float = 0.0
    far: float = 0.0
    narrow: float = 0.51
    reference: Callable[..., Any] | None = None
    of_rounded: Callable[..., Any] | None = None

    @property
    def exact(self) -> Callable[..., Any]:
        """The function of float64 tensors."""
        return self.reference or self.call


def _truncated(dtype, x, y):
    """Without the fraction of the quotient as the format holds it."""
    return torch.trunc((x / y).to(dtype).double())


def _gelu(x):
    return x * torch.special.erfc(-x * math.sqrt(0.5)) / 2


def _softplus(x):
    return torch.logaddexp(x, torch.zeros_like(x))


def _gelu_dx(x):
    return torch.special.erfc(-x * math.sqrt(0.5)) / 2 + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


def _tanh_gate(x):
    return torch.sigmoid(2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))


def _slope(name):
    """The derivative of an activation: PyTorch's backward operator with a gradient of one."""
    return lambda x: getattr(torch.ops.aten, f"{name}_backward")(torch.ones_like(x), x)


_ENGINE = "one instruction of ScalarE"
_CORRECTED = "log u + (x - (u - 1)) / u, u = 1 + x"
_EXACT = "magnitude + 2^23 - 2^23; x itself from 2^23 on"
FUNCTIONS: tuple[Function, ...] = (
    Function("x + y", torch.add, 0.5, "one instruction", 2, narrow=0.5),
    Function("x * y", torch.mul, 0.5, "one instruction", 2, narrow=0.5),
    Function("x / y", torch.div, 1.5, "(x s) (1 / (y s)), s a power of two", 2),
    Function("1 / x", torch.reciprocal, 0.5, "the reciprocal of VectorE", narrow=0.5),
    Function("x / 3", lambda x: x / 3.0, 1.0, "x (1 / 3)"),
    Function("div floor", lambda x, y: torch.div(x, y, rounding_mode="floor"), 2.0, "(x - x mod y) / y", 2),
    Function(
        "div trunc",
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        2.0,
        "(x - x mod y) / y, or one more where x / y rounds to that",
        2,
        of_rounded=_truncated,
    ),
    Function("fmod", torch.fmod, 0.0, "the ALU's mod (assumed)", 2, narrow=0.5),
    Function("remainder", torch.remainder, 0.5, "the ALU's mod (assumed), plus y", 2, narrow=0.5),
    Function("floor", torch.floor, 0.0, _EXACT, narrow=0.0),
    Function("ceil", torch.ceil, 0.0, _EXACT, narrow=0.0),
    Function("round", torch.round, 0.0, _EXACT, narrow=0.0),
    Function("trunc", torch.trunc, 0.0, _EXACT, narrow=0.0),
    Function("frac", torch.frac, 0.0, "x - trunc x", narrow=0.5),
    Function("sign", torch.sign, 0.0, "0 for NaN, as in PyTorch", narrow=0.0),
    Function("copysign", torch.copysign, 0.0, "bits", 2, narrow=0.0),
    Function("maximum", torch.maximum, 0.0, "one instruction", 2, narrow=0.0),
    Function("fmax", torch.fmax, 0.0, "maximum, the other beside NaN", 2, narrow=0.0),
    Function("sqrt", torch.sqrt, 0.5, _ENGINE, narrow=0.5),
    Function("rsqrt", torch.rsqrt, 1.5, _ENGINE),
    Function("exp", torch.exp, 2.5, _ENGINE),
    Function("exp2", torch.exp2, 1.0, "the power of GpSimd"),
    Function("expm1", torch.expm1, 2.5, "2 t / (1 - t), t = tanh(x / 2); exp x - 1 from 1 on"),
    Function("log", torch.log, 3.0, _ENGINE),
    Function("log2", torch.log2, 3.5, "n + log(x 2^-n) / log 2"),
    Function("log10", torch.log10, 3.5, "n log10 2 + log10(x 2^-n)"),
    Function("log1p", torch.log1p, 2.5, _CORRECTED),
    Function("pow", torch.pow, 1.0, "the power of GpSimd", 2),
    Function("x ** 3", lambda x: x**3, 1.5, "products"),
    Function("x ** -2", lambda x: x**-2, 1.0, "the power of GpSimd"),
    Function("sin", torch.sin, 3.0, "Cody-Waite; Payne-Hanek from 2^13 on", far=2.0**-6),
    Function("cos", torch.cos, 3.0, "Cody-Waite; Payne-Hanek from 2^13 on", far=2.0**-6),
    Function("tan", torch.tan, 5.0, "sin x / cos x", far=math.inf),
    Function("atan", torch.atan, 2.0, "ScalarE's, of min(|x|, 1 / |x|)"),
    Function("asin", torch.asin, 2.5, "2 atan(x / (1 + sqrt(1 - x^2)))"),
    Function("acos", torch.acos, 3.0, "2 atan(sqrt(1 - x) / sqrt(1 + x))"),
    Function("atan2", torch.atan2, 2.5, "atan of the smaller over the larger", 2),
    Function("hypot", torch.hypot, 2.5, "m sqrt(1 + (n / m)^2)", 2),
    Function("sinh", torch.sinh, 5.0, "by expm1; exp(x / 2)^2 / 2 from 10 on"),
    Function("cosh", torch.cosh, 5.0, "exp(x / 2)^2 / 2 + exp(-x) / 2"),
    Function("tanh", torch.tanh, 1.5, _ENGINE),
    Function("asinh", torch.asinh, 3.0, "by log1p; log x + log 2 from 2^30 on"),
    Function("acosh", torch.acosh, 3.0, "by log1p; log x + log 2 from 2^30 on"),
    Function("atanh", torch.atanh, 4.0, "log1p(2 x / (1 - x)) / 2"),
    Function("erf", torch.erf, 1.5, _ENGINE),
    Function("erfc", torch.erfc, 5.0, "exp(-x^2) in two parts, times a fit of degree 8"),
    Function("sigmoid", torch.sigmoid, 2.5, _ENGINE),
    Function("softplus", F.softplus, 4.0, "log1p(exp x)", reference=_softplus),
    Function("elu", F.elu, 2.5, "by expm1"),
    Function("selu", F.selu, 3.0, "by expm1"),
    Function("gelu", F.gelu, 5.0, _ENGINE, reference=_gelu, floor=2.0**-110),
    Function(
        "gelu tanh",
        lambda x: F.gelu(x, approximate="tanh"),
        128.0,
        _ENGINE,
        reference=lambda x: x * _tanh_gate(x),
        floor=2.0**-110,
    ),
    Function("silu", F.silu, 3.0, _ENGINE, reference=lambda x: x * torch.sigmoid(x), floor=2.0**-119),
    Function("mish", F.mish, 5.0, "x tanh(softplus x)", floor=2.0**-119),
    Function("gelu'", _slope("gelu"), 8.0, _ENGINE, reference=_gelu_dx, floor=2.0**-4),
    Function(
        "silu'", _slope("silu"), 8.0, "s (1 + x (1 - s)), each step rounded to the format", floor=2.0**-4, narrow=2.5
    ),
)


# -- the grid -------------------------------------------------------------------------------------------------------


def _magnitudes(format: str) -> list[Array]:
    rng = np.random.default_rng(0)
    bits, smallest, largest = _FIGURES[format]
    step = 2.0 ** (1 - bits)
    exponents = np.arange(smallest - bits + 1, largest + 1)
    corners = np.array([1, 1 + step, 1.25, 1.5, 1.75 - 8 * step, 2 - step])
    drawn = rng.uniform(1, 2, (len(exponents), 60 if format == "float32" else 8))
    multiples = np.concatenate([np.arange(1, 600), 2.0 ** np.arange(9, 24), rng.integers(1, 2**22, 1500)])
    halves = np.arange(400) / 2
    return [
        (corners * 2.0 ** exponents[:, None]).ravel(),
        (drawn * 2.0 ** exponents[:, None]).ravel(),
        *_neighbours(multiples * np.pi / 2),
        *_neighbours(halves),
        *_neighbours(2.0 ** np.arange(-30, 31)),
        1 + rng.uniform(-1e-3, 1e-3, 1000),
        rng.uniform(0, 120, 3000),
    ]


def _neighbours(x: Array) -> list[Array]:
    narrow = x.astype(np.float32)
    return [narrow, np.nextafter(narrow, np.float32(0)), np.nextafter(narrow, np.float32(np.inf))]


@cache
def grid(format: str) -> torch.Tensor:
    """[128, N] numbers: every exponent with several significands, subnormals, both signs; half and whole numbers and
    multiples of pi / 2 with their neighbours; zeros, infinities, NaN."""
    with np.errstate(all="ignore"):
        positive = np.concatenate([m.astype(np.float32) for m in _magnitudes(format)])
        x = np.concatenate([positive, -positive, np.float32([0.0, -0.0, np.inf, -np.inf, np.nan])])
    rows = np.resize(x, -(-x.size // ROWS) * ROWS).reshape(ROWS, -1)
    return torch.from_numpy(rows).to(FORMATS[format])


@cache
def second_grid(format: str) -> torch.Tensor:
    """Numbers to go with `grid`: all of it in another order, half of it of a magnitude near the partner's."""
    x, rng = grid(format), np.random.default_rng(1)
    order = torch.from_numpy(rng.permutation(x.numel()))
    y = x.reshape(-1)[order].reshape(x.shape).clone()
    factor = torch.from_numpy(rng.uniform(0.5, 2.0, (ROWS // 2, x.shape[1])))
    y[::2] = (x[::2].double() * factor).to(x.dtype)
    return y


# -- running --------------------------------------------------------------------------------------------------------


@cache
def traced(
    format: str, operands: int, shape: tuple[int, int] | None = None
) -> tuple[list[Function], Graph, list[Array]]:
    """All functions of so many operands as one graph, an output each; and its inputs: the grid, or zeros [shape]."""
    chosen = [f for f in FUNCTIONS if f.operands == operands]
    tensors = [grid(format), second_grid(format)][:operands]
    if shape is not None:
        tensors = [torch.zeros(shape, dtype=FORMATS[format])] * operands

    def all_of_them(*inputs):
        return [f.call(*inputs) for f in chosen]

    graph = Traced(all_of_them, tensors).graph
    assert len(graph.outputs) == len(chosen)
    assert len(graph.inputs) == operands
    return chosen, graph, [_array(t) for t in tensors]


def _array(tensor: torch.Tensor) -> Array:
    formats = {torch.float32: float32, torch.bfloat16: bfloat16, torch.float16: float16}
    return tensor.float().numpy().astype(formats[tensor.dtype].numpy)


def graph_of(function: Function, format: str, shape: tuple[int, int] | None = None) -> tuple[Graph, list[Array]]:
    """The graph of one function, and its inputs."""
    chosen, whole, inputs = traced(format, function.operands, shape)
    graph = whole.copy()
    graph.outputs, graph.output_names = [graph.outputs[chosen.index(function)]], ["result"]
    remove_dead_ops(graph)
    return graph, inputs


def on_chip(graph: Graph, inputs: Sequence[Array], chip: str) -> Array:
    """What the compiled program computes."""
    program = compile(graph, chips.get(chip), {"precision": "fp32"})
    return _execute(program, graph, inputs, chip)


def _execute(program: Program, graph: Graph, inputs: Sequence[Array], chip: str) -> Array:
    (value,) = graph.outputs
    result = np.zeros(value.type.size, value.dtype.numpy)
    bound = {place: x.reshape(-1).copy() for place, x in zip(program.inputs, inputs)}
    bound[program.outputs[0]] = result
    run_program(program, bound, chips.get(chip))
    return result.reshape(value.shape)


def measured(function: Function, format: str, engine: str) -> Array:
    """Errors in ulp, [128, N]; infinite where NaN, an infinity or the sign of a zero is wrong."""
    graph, inputs = graph_of(function, format)
    got = interpret(graph, inputs)[0] if engine == "interpreter" else on_chip(graph, inputs, engine)
    tensors = [grid(format), second_grid(format)][: function.operands]
    return errors(got.astype(np.float64), expected(function, format), function, format, tensors[0].double().numpy())


@cache
def expected(function: Function, format: str) -> Array:
    """The function in float64."""
    tensors = [t.double() for t in (grid(format), second_grid(format))][: function.operands]
    if function.of_rounded is not None:
        return function.of_rounded(FORMATS[format], *tensors).numpy()
    return function.exact(*tensors).detach().numpy()


def errors(got: Array, want: Array, function: Function, format: str, x: Array) -> Array:
    """See the module."""
    bits, smallest, largest = _FIGURES[format]
    scale = np.maximum(np.abs(want), function.floor)
    if function.far:
        scale = np.where(np.abs(x) > 2.0**13, np.maximum(scale, function.far), scale)
    with np.errstate(all="ignore"):
        exponent = np.clip(np.floor(np.log2(np.maximum(scale, 2.0**smallest))), smallest, largest)
        found = np.abs(got - want) / 2.0 ** (exponent + 1 - bits)
    overflows = np.isinf(got) & (np.signbit(got) == np.signbit(want))  # right from a few steps below infinity on
    found = np.where(overflows & (np.abs(want) >= (2.0 - 2.0 ** (3 - bits)) * 2.0**largest), 0.0, found)
    found = np.where(np.isnan(want) & np.isnan(got), 0.0, found)
    wrong_zero = (want == 0) & (got == 0) & (np.signbit(want) != np.signbit(got))
    found = np.where(np.isnan(found) | wrong_zero, np.inf, found)
    return np.where(np.isinf(function.far) & (np.abs(x) > 2.0**13), 0.0, found)


def cost(function: Function, chip: str) -> tuple[int, float]:
    """What a tile of 128 x 512 costs in fp32: instructions, loads and stores left out, and further microseconds."""
    found = []
    for tiles in (1, 8, 16):
        program = compile(
            graph_of(function, "float32", (ROWS * tiles, 512))[0], chips.get(chip), {"precision": "fp32"}
        )
        count = sum(int((program.routines[call.routine].queue < 0).sum()) for call in program.calls)
        found.append((count, estimate(program, chips.get(chip)) / 1e6))
    (count, _), (_, early), (_, late) = found
    return count, (late - early) / 8


def bound(function: Function, format: str) -> float:
    """What the table allows."""
    return function.ulps if format == "float32" else function.narrow

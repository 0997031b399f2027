# SPDX-License-Identifier: Apache-2.0
"""StableHLO export: a golden example; and, where jaxlib is installed, XLA on the CPU as an independent oracle."""

import numpy as np
import pytest
from convolutions import random_convolution
from graph_samples import every_op, random_graph, random_inputs

from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.numerics.dtypes import bfloat16, bool_, float32

GOLDEN = """\
module {
  func.func public @main(%arg0: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, %arg1: tensor<3x4xbf16>) -> \
(tensor<2x3xf32>, tensor<2xbf16>) {
    %0 = "stablehlo.logistic"(%arg0) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %1 = "stablehlo.multiply"(%arg0, %0) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
    %2 = "stablehlo.convert"(%1) : (tensor<2x3xf32>) -> tensor<2x3xbf16>
    %3 = "stablehlo.dot_general"(%2, %arg1) {dot_dimension_numbers = #stablehlo.dot<\
lhs_contracting_dimensions = [1], rhs_contracting_dimensions = [0]>} : \
(tensor<2x3xbf16>, tensor<3x4xbf16>) -> tensor<2x4xbf16>
    %4 = "stablehlo.constant"() {value = dense<0xFF80> : tensor<bf16>} : () -> tensor<bf16>
    %5 = "stablehlo.reduce"(%3, %4) ({^bb0(%a: tensor<bf16>, %b: tensor<bf16>): %r = "stablehlo.maximum"(%a, %b) : \
(tensor<bf16>, tensor<bf16>) -> tensor<bf16> "stablehlo.return"(%r) : (tensor<bf16>) -> ()}) \
{dimensions = array<i64: 1>} : (tensor<2x4xbf16>, tensor<bf16>) -> tensor<2xbf16>
    "func.return"(%1, %5) : (tensor<2x3xf32>, tensor<2xbf16>) -> ()
  }
}
"""


def test_golden():
    b = GraphBuilder("g")
    x, w = b.input("x", (2, 3), float32), b.input("w", (3, 4), bfloat16)
    hidden = b.silu(x)
    b.output(hidden, alias_of=x)
    b.output(b.reduce(b.matmul(b.convert(hidden, bfloat16), w, bfloat16), [1], "maximum"))
    assert to_stablehlo(b.build()) == GOLDEN


def through_xla(graph, arrays):
    """Compile with XLA for the CPU and run."""
    jax = pytest.importorskip("jax")
    from jaxlib import xla_client

    device = jax.devices("cpu")[0]
    devices = xla_client.DeviceList((device,))
    text = to_stablehlo(graph).replace(" {tf.aliasing_output", " {trn.ignored")
    program = device.client.compile_and_load(text, devices, xla_client.CompileOptions())
    inputs = [a.astype(np.bool_) if v.dtype is bool_ else a for a, v in zip(arrays, graph.inputs)]
    results = program.execute_sharded([jax.device_put(a, device) for a in inputs])
    return [np.asarray(r[0]) for r in results.disassemble_into_single_device_arrays()]


@pytest.mark.parametrize("seed", ["every op", *range(12)])
def test_xla_computes_what_the_interpreter_computes(seed):
    graph = every_op() if seed == "every op" else random_graph(seed)
    arrays = random_inputs(graph)
    for ours, theirs, value in zip(interpret(graph, arrays), through_xla(graph, arrays), graph.outputs):
        assert theirs.shape == value.shape
        tolerance = 2e-5 if value.dtype is float32 else 2**-6
        scale = np.abs(np.nan_to_num(ours.astype(np.float64), posinf=0, neginf=0)).max(initial=1e-3)
        np.testing.assert_allclose(theirs.astype(np.float64), ours.astype(np.float64), tolerance, tolerance * scale)


@pytest.mark.parametrize("seed", range(40))
def test_xla_computes_the_same_convolutions(seed):
    graph = random_convolution(seed)
    arrays = random_inputs(graph)
    np.testing.assert_allclose(interpret(graph, arrays)[0], through_xla(graph, arrays)[0], rtol=1e-5, atol=1e-5)

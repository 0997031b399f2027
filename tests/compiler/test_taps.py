# SPDX-License-Identifier: Apache-2.0
"""A tapped program computes the bits of the plain one, and what it shows are the graph's intermediate results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_graphs import Generator

from trnlab import chips, compiler
from trnlab.compiler.passes import PASSES, run_passes, with_chip
from trnlab.compiler.probes import compile_probed, read
from trnlab.frontends.stablehlo import import_module
from trnlab.graph.canonical import diff
from trnlab.graph.interpret import interpret
from trnlab.graph.ir import Graph
from trnlab.graph.passes.dead import remove_dead_ops
from trnlab.sim.functional import run_program

SEEDS = 40
OPTIONS = {"precision": "fp32"}


def run(program, inputs):
    """Memory by tensor after a run; inputs are not overwritten."""
    memory = {id: np.array(x).reshape(program.tensors[id].shape) for id, x in zip(program.inputs, inputs)}
    for tensor in program.tensors:
        if tensor.kind == "output" and tensor.id not in memory:
            memory[tensor.id] = np.empty(tensor.shape, tensor.dtype.numpy)
    run_program(program, memory, chips.get("trn1"))
    return {**program.constants, **memory}


@pytest.mark.parametrize("first", range(0, SEEDS, 10))
def test_outputs_have_the_same_bits_with_taps_and_without(first):
    shown = 0
    for seed in range(first, first + 10):
        made = Generator(seed, ops=8 + seed % 20)
        graph, inputs = made.graph(), made.inputs()
        values = [v for op in graph.ops for v in op.results]
        plain = compiler.compile(graph, chips.get("trn1"), OPTIONS)
        tapped = compile_probed(graph, values, chips.get("trn1"), OPTIONS)
        before, after = run(plain, inputs), run(tapped.program, inputs)
        for a, b in zip(plain.outputs, tapped.program.outputs, strict=True):
            assert before[a].tobytes() == after[b].tobytes(), f"seed {seed}"
        assert len(tapped.program.calls) == len(plain.calls)
        shown += check(graph, values, tapped, after, inputs, seed)
    assert shown > 60


def check(graph, values, tapped, memory, inputs, seed):
    """Each tap is near the interpreter's value; returns how many there are."""
    every = Graph("every", graph.inputs, graph.ops, values)
    expected = interpret(every, [np.array(x) for x in inputs])
    given = dict(zip(tapped.program.inputs, inputs))
    for i, tap in tapped.probes.items():
        got = np.asarray(read(tap, (given if tap.given else memory)[tap.tensor]), np.float64)
        want = np.asarray(expected[i], np.float64)
        assert got.shape == want.shape
        error = np.abs(got - want).max(initial=0) / max(1.0, np.abs(want).max(initial=0))
        assert error <= 2.0**-7, f"seed {seed}, {values[i]}"
    return len(tapped.probes)


def _attention(x, w):
    q, k, v = (x @ w[i] for i in range(3))
    return jax.nn.softmax(jnp.where(jnp.tri(len(x), dtype=bool), q @ k.T / 4, -jnp.inf), axis=-1) @ v


def _norm(x, w):
    apart = x - x.mean(-1, keepdims=True)
    return apart * jax.lax.rsqrt((apart * apart).mean(-1, keepdims=True) + 1e-5) * w[0, 0] + w[0, 1]


WRITTEN_OUT = {
    "attention": _attention,
    "gelu by tanh": lambda x, w: jax.nn.gelu(x @ w[0]) @ w[1],
    "gelu by erf": lambda x, w: 0.5 * x * (1 + jax.lax.erf(x * np.float32(0.5**0.5))) @ w[0],
    "silu": lambda x, w: jax.nn.silu(x @ w[0]),
    "picks": lambda x, w: jnp.take_along_axis(x @ w[0], jnp.arange(len(x))[:, None] % 7, 1),
    "layer norm": lambda x, w: _norm(x, w) @ w[2],
    "bias gradient": lambda x, w: x @ w[0] + w[1, 0],
    "products, turned and narrowed": lambda x, w: (w[0].T @ x.T).astype(jnp.bfloat16),
    "a sum over a batch": lambda x, w: jnp.einsum("bti,io->bto", x.reshape(2, -1, x.shape[1]), w[0]),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_taps_decide_nothing(name, precision):
    """Every value is tapped, and what has a form of its own is found, folded and summed as without taps."""

    def loss(x, w):
        return (WRITTEN_OUT[name](x, w).astype(jnp.float32) ** 2).sum()

    given = np.ones((32, 16), np.float32), np.ones((3, 16, 16), np.float32)
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    plain = import_module(step.lower(*given).compiler_ir("stablehlo"), "test").graph
    tapped, options = plain.copy(), with_chip({"precision": precision}, chips.get("trn1"))
    count, values = len(tapped.outputs), list(tapped.values())
    tapped.outputs.extend(values)
    tapped.num_probes = len(values)
    passes = PASSES[: [pass_ for pass_, _ in PASSES].index("legalize") + 1]
    written = plain.copy()
    for graph in (plain, tapped):
        run_passes(graph, options, passes)
    del tapped.outputs[count:]
    remove_dead_ops(tapped)
    assert not diff(plain, tapped)
    assert diff(plain, written)

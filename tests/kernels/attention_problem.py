# SPDX-License-Identifier: Apache-2.0
"""Attention problems with their exact answers, for the tests of the forward and the backward kernel."""

from dataclasses import dataclass

import numpy as np

from trnlab.chips import catalog
from trnlab.kernels.view import full
from trnlab.numerics.dtypes import dtype
from trnlab.program.builder import Builder
from trnlab.sim.functional import Machine

CHIPS = {name: catalog.get(name) for name in ("trn1", "trn2")}
BF16_UNIT = 2.0**-8  # largest relative error of rounding to bfloat16


@dataclass(frozen=True)
class Problem:
    """Shapes and options; tensors lie in memory as [B, T, H, D], with all heads of a token side by side."""

    batch: int = 1
    heads: int = 2
    queries: int = 130
    depth: int = 32
    value_depth: int | None = None
    keys: int | None = None
    kv_heads: int | None = None
    causal: bool = False
    bias: tuple[int, ...] | None = None
    kind: str = "float32"
    chip: str = "trn2"
    spread: float = 1.0  # of q: how far apart the scores are
    hides: bool = False  # the bias is 0 or minus infinity
    form: str = "fused"

    @property
    def scale(self):
        return self.depth**-0.5

    @property
    def q_shape(self):
        return self.batch, self.queries, self.heads, self.depth

    @property
    def k_shape(self):
        return self.batch, self.keys or self.queries, self.kv_heads or self.heads, self.depth

    @property
    def v_shape(self):
        return *self.k_shape[:3], self.value_depth or self.depth

    @property
    def out_shape(self):
        return *self.q_shape[:3], self.value_depth or self.depth

    def __str__(self):
        return "-".join(f"{v}" for k, v in vars(self).items() if v != getattr(Problem, k))


def tensors(p, seed=0):
    """q, k, v, dout [B, T, H, D or E] in the problem's format, and the bias in float32 or None."""
    rng = np.random.default_rng(seed)
    shapes = (p.q_shape, p.k_shape, p.v_shape, p.out_shape)
    q, k, v, dout = (rng.standard_normal(s, np.float32) for s in shapes)
    bias = rng.standard_normal(p.bias, np.float32) if p.bias is not None else None
    if p.hides:
        bias = np.where(bias > 0.5, np.float32(0), np.float32(-np.inf))
        bias[0, 0, -1] = -np.inf  # a query that sees no key
    return [x.astype(dtype(p.kind).numpy) for x in (q * np.float32(p.spread), k, v, dout)], bias


def heads_first(p, x):
    """[B, T, H, D] as float64 [B, H, T, D], key heads repeated for each of their query heads."""
    x = x.astype(np.float64).transpose(0, 2, 1, 3)
    return x.repeat(p.heads // x.shape[1], axis=1)


def exact(p, q, k, v, bias):
    """Probabilities, output and log of the sum of exponentials in float64, [B, H, ...]."""
    q, k, v = (heads_first(p, x) for x in (q, k, v))
    scores = p.scale * q @ k.swapaxes(-1, -2)
    if bias is not None:
        scores = scores + bias
    if p.causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), np.finfo(np.float64).min)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    hidden = total == 0
    total[hidden], top[hidden] = 1, 0
    return weights / total, weights / total @ v, (top + np.log(total))[..., 0]


def by_tokens(b, name, shape, kind):
    """A parameter [B, T, H, D] as the view [B, H, T, D] that the kernels take."""
    return full(b.param(name, shape, kind)).permute(0, 2, 1, 3)


def run(p, routine, arrays):
    """Execute; every instruction must have a compiled kernel."""
    machine = Machine(CHIPS[p.chip])
    machine.call(routine, [np.ascontiguousarray(a) for a in arrays])
    assert machine.by_meaning == 0


def builder(p):
    return Builder("attention", CHIPS[p.chip])


def worst(got, expected):
    """The largest error, as a fraction of the largest magnitude."""
    assert np.isfinite(got.astype(np.float64)).all()
    return np.abs(got.astype(np.float64) - expected).max() / np.abs(expected).max()

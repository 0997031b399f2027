# SPDX-License-Identifier: Apache-2.0
"""What PyTorch draws at random, as the chip draws it: the distributions, and who shares numbers with whom.

Every threshold follows from the distribution of the statistic: five standard deviations, so that a right generator
fails once in about two million draws, and these draws are fixed by their seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from trnlab import chips, compiler
from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import capture_step, compile_step
from trnlab.frontends.torch.capture import tracing
from trnlab.frontends.torch.capture.import_fx import import_fx
from trnlab.graph.interpret import interpret
from trnlab.runtime import session
from trnlab.sim.functional import run_program

SIGMAS = 5.0
COUNT = (250, 240)  # 60 000 numbers
SEED = np.array([11, 12], np.int32)


def drawn(function, *shape, seed=SEED, chip="trn1", seen=np.asarray, **kwargs):
    """What function(x) gives on the simulated chip, x float32 zeros of the shape; the interpreter agrees on it, or on
    what `seen` makes of it."""
    shape = shape or COUNT
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = tracing.fake_like(mode, torch.zeros(shape), "neuron")

    count = []

    def traced(lines, x):
        found = function(x)
        found = list(found) if isinstance(found, tuple) else [found]
        count.append(len(found))
        return found

    graph = import_fx(tracing.trace(traced, [fake], mode), "draws").graph
    inputs = [seed if v.name == "seed" else np.zeros(shape, np.float32) for v in graph.inputs]
    target = chips.get(chip)
    program = compiler.compile(graph, target, {"precision": "fp32"})
    bound = {place: x.reshape(-1) for place, x in zip(program.inputs, inputs)}
    bound |= {place: np.zeros(v.type.size, v.dtype.numpy) for place, v in zip(program.outputs, graph.outputs)}
    run_program(program, bound, target, **kwargs)
    results = [bound[place].reshape(v.shape) for place, v in zip(program.outputs, graph.outputs)]
    for got, meant in zip(results, interpret(graph, inputs)):
        if got.dtype.kind == "f":
            np.testing.assert_allclose(seen(got), seen(meant), rtol=2e-4, atol=2e-4)
        else:
            assert np.mean(got != meant) < 1e-3  # a number on the edge of two
    return results[: count[0]] if count[0] > 1 else results[0]  # the others watch 64-bit integers


def chi_square(found, expected):
    """By how many standard deviations counts are too far from, or too near to, what is expected."""
    found, expected = np.asarray(found, float), np.asarray(expected, float)
    assert expected.min() > 20
    freedom = len(found) - 1
    return abs(((found - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def normal_cdf(x):
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


DISTRIBUTIONS = {
    "rand_like": (torch.rand_like, lambda x: min(max(x, 0), 1)),
    "uniform": (lambda x: torch.empty_like(x).uniform_(-3.0, 5.0), lambda x: min(max((x + 3) / 8, 0), 1)),
    "randn_like": (torch.randn_like, normal_cdf),
    "normal": (lambda x: torch.empty_like(x).normal_(2.0, 3.0), lambda x: normal_cdf((x - 2) / 3)),
    "normal_of_tensors": (lambda x: torch.normal(x + 1, 2.0), lambda x: normal_cdf((x - 1) / 2)),
    "log_normal": (
        lambda x: torch.empty_like(x).log_normal_(0.5, 0.25),
        lambda x: normal_cdf((math.log(x) - 0.5) / 0.25) if x > 0 else 0,
    ),
    "exponential": (
        lambda x: torch.empty_like(x).exponential_(0.5),
        lambda x: 1 - math.exp(-0.5 * x) if x > 0 else 0,
    ),
    "gumbel": (lambda x: -torch.empty_like(x).exponential_().log(), lambda x: math.exp(-math.exp(-x))),
    "cauchy": (lambda x: torch.empty_like(x).cauchy_(1.0, 2.0), lambda x: 0.5 + math.atan((x - 1) / 2) / math.pi),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name):
    """Chi-square over 50 intervals of equal probability."""
    function, cdf = DISTRIBUTIONS[name]
    seen = np.arctan if name == "cauchy" else np.asarray  # a tangent is as uncertain as its angle, times its square
    share = np.vectorize(cdf)(drawn(function, seen=seen).astype(np.float64)).ravel()
    counts = np.histogram(share, 50, (0, 1))[0]
    assert counts.sum() == share.size
    assert chi_square(counts, np.full(50, share.size / 50)) < SIGMAS


WHOLE = {
    "randint": (lambda x: torch.randint(7, x.shape, device=x.device), dict.fromkeys(range(7), 1 / 7)),
    "randint_from": (lambda x: torch.randint(-3, 5, x.shape, device=x.device), dict.fromkeys(range(-3, 5), 1 / 8)),
    "randint_like": (lambda x: torch.randint_like(x, 2, 12), dict.fromkeys(range(2, 12), 1 / 10)),
    "random_": (lambda x: torch.empty_like(x).random_(5), dict.fromkeys(range(5), 1 / 5)),
    "bernoulli_": (lambda x: torch.empty_like(x).bernoulli_(0.3), {0: 0.7, 1: 0.3}),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.75), {0: 0.25, 1: 0.75}),
    "bernoulli_of": (lambda x: torch.empty_like(x).bernoulli_(x + 0.1), {0: 0.9, 1: 0.1}),
    "geometric": (
        lambda x: torch.empty_like(x).geometric_(0.5).clamp(max=9),
        {**{i: 0.5**i for i in range(1, 9)}, 9: 0.5**8},
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name):
    """Each value, and no other, as often as it should come."""
    function, shares = WHOLE[name]
    values, counts = np.unique(drawn(function), return_counts=True)
    assert values.tolist() == sorted(shares)
    assert chi_square(counts, [counts.sum() * shares[v] for v in values]) < SIGMAS


def test_tails():
    """What has a tail goes on beyond the 24 bits of a uniform number, and is never infinite."""
    normal, waited = drawn(lambda x: (torch.randn_like(x), torch.empty_like(x).exponential_()), 1000, 1000)
    beyond = (np.abs(normal) > 4).sum()  # 63.3 expected
    assert abs(beyond - 2e6 * (1 - normal_cdf(4))) < SIGMAS * math.sqrt(63.3)
    assert np.isfinite(normal).all()
    assert np.isfinite(waited).all()
    assert waited.min() > 0


def test_uniform_numbers_stay_below_one_in_narrow_formats():
    """Rounding to bfloat16 would make ones of the last numbers."""
    x = drawn(lambda x: torch.rand_like(x, dtype=torch.bfloat16).float())
    assert x.max() == 1 - 2**-8
    assert chi_square(np.histogram(x, 16, (0, 1))[0], np.full(16, x.size / 16)) < SIGMAS
    assert drawn(lambda x: torch.empty_like(x, dtype=torch.bfloat16).uniform_(1.0, 2.0).float()).max() < 2


@pytest.mark.parametrize("p", [0.0, 2.0**-24, 0.1, 0.5, 1 / 3, 1 - 2.0**-24, 1.0])
def test_dropout_rate(p):
    """The kept share is 1 - p, p as 24 bits have it; what is kept is scaled by 1 / (1 - p)."""
    y = drawn(lambda x: F.dropout(x + 1, p, True), 1000, 1000)
    dropped, n = int((y == 0).sum()), y.size
    exact = math.ceil(p * 2**24) / 2**24
    assert abs(dropped - n * exact) <= SIGMAS * math.sqrt(n * exact * (1 - exact)) + 1e-6
    if dropped < n:
        np.testing.assert_allclose(y[y != 0], 1 / (1 - p), rtol=1e-6)


def test_masks_are_independent():
    """Dropout of layers with different shapes, of one layer twice, of neighbouring rows and columns is
    uncorrelated, and no row comes twice."""

    def layers(x):
        wide = torch.cat([x, x], 0)
        return tuple(F.dropout(v + 1, 0.5, True) for v in (x, wide, x[:70], x.reshape(64, 256), x))

    masks = [m != 0 for m in drawn(layers, 128, 128)]
    rows = [row.tobytes() for m in masks for row in m]
    assert len(set(rows)) == len(rows)
    runs = [m.ravel()[i : i + 64].tobytes() for m in masks for i in range(0, m.size - 64, 64)]
    assert len(set(runs)) == len(runs)
    signs = [2.0 * m.ravel() - 1 for m in masks]
    for i, a in enumerate(signs):
        for lag in (1, 64, 128, 256):
            assert abs((a[lag:] * a[:-lag]).sum()) < SIGMAS * math.sqrt(a.size - lag)
        changes = (a[1:] != a[:-1]).sum()  # runs of equal values
        assert abs(changes - (a.size - 1) / 2) < SIGMAS * math.sqrt(a.size - 1) / 2
        for b in signs[i + 1 :]:
            n = min(a.size, b.size)
            assert abs((a[:n] * b[:n]).sum()) < SIGMAS * math.sqrt(n)


def test_steps_with_neighbouring_seeds_share_nothing():
    """Neither the numbers of one seed nor a shifted run of them come again with a seed that is one higher."""
    seeds = [np.array(s, np.int32) for s in ((5, 0), (6, 0), (5, 1), (-5, 0))]
    draws = [drawn(torch.rand_like, 64, 128, seed=s).ravel() for s in seeds]
    runs = [x[i : i + 4].tobytes() for x in draws for i in range(x.size - 4)]
    assert len(set(runs)) == len(runs)
    for i, a in enumerate(draws):
        for b in draws[i + 1 :]:
            assert abs(((a - 0.5) * (b - 0.5)).sum() * 12) < SIGMAS * math.sqrt(a.size)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(300, 20))
        self.reentrant = reentrant

    def forward(self):
        def part(w):
            return F.dropout(w * 1.0, 0.5, True).sin() + F.dropout(w, 0.5, True)

        reentrant = self.reentrant
        return part(self.weight) if reentrant is None else checkpoint(part, self.weight, use_reentrant=reentrant)


@pytest.mark.parametrize("way", ["step", "compile", "compile, reentrant"])
def test_checkpointing_sees_the_same_masks(way):
    """A gradient that is computed again from the inputs is that of the values that were seen."""
    gradients = []
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        for kind in (None, "reentrant" in way):
            torch.manual_seed(3)
            model = Checkpointed(kind).to("neuron")
            if way == "step":
                compile_step(model, torch.optim.SGD(model.parameters(), lr=1.0), lambda m: m().sum())()
                gradients.append(1 - model.weight.detach().cpu())
            else:
                torch.compile(model, backend="neuron")().sum().backward()
                gradients.append(model.weight.grad.cpu())
    assert len(torch.unique(gradients[0].round(decimals=4))) == 4  # kept by both, by either, by none
    assert torch.allclose(*gradients, rtol=1e-5, atol=1e-5)


def test_capturing_leaves_the_generator_alone():
    model = Checkpointed(None).to("neuron")
    before = torch.get_rng_state()
    graph = capture_step(model, None, lambda m: m().sum(), ()).graph
    assert torch.equal(torch.get_rng_state(), before)
    ranges = sorted((op.attrs["first"], op.result.type.size) for op in graph.ops if op.name == "trn.rng_uniform")
    assert ranges == [(0, 6000), (6000, 6000)]


def test_the_seed_decides_on_any_number_of_threads():
    """One seed, the same bits: with one or two host threads, and on every chip."""
    function = lambda x: F.dropout(x + 1, 0.5, True)  # noqa: E731
    from trnlab.sim.functional import RunOptions

    first = drawn(function, 300, 200, options=RunOptions(threads=1))
    assert np.array_equal(first, drawn(function, 300, 200, options=RunOptions(threads=2)))
    for chip in ("trn2", "trn3"):
        assert np.array_equal(first, drawn(function, 300, 200, chip=chip))


REFUSED = {
    "a long permutation": (lambda x: torch.randperm(100_000, device=x.device), "on the host"),
    "multinomial": (lambda x: torch.multinomial(x + 1, 2), "argmax"),
    "poisson": (torch.poisson, "number of tries"),
    "a wide range": (lambda x: torch.randint(1 << 20, x.shape, device=x.device), "65536"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused_with_a_reason(name):
    function, words = REFUSED[name]
    with pytest.raises(UnsupportedOpError, match=words):
        drawn(function, 4, 8)

# SPDX-License-Identifier: Apache-2.0
"""Random numbers: dropout, and what PyTorch draws from its distributions.

Everything comes from uniform numbers u, multiples of 2**-24 in [0, 1). An event of probability p is u < p, so its
probability is p to within 2**-24. Where a distribution has a tail, u is refined by further bits near zero
(`_positive`), so that the tail does not end at 2**-24.
"""

from __future__ import annotations

from math import log1p, pi
from typing import Any

import numpy as np

from trnlab.frontends.torch.draws import shard_of
from trnlab.frontends.torch.lowerings.registry import LoweringSite, UnsupportedOperatorForm, lowers
from trnlab.frontends.torch.lowerings.sorting import MOST_COMPARED, rank_of
from trnlab.graph.ir import Value
from trnlab.numerics.dtypes import int32

FRACTION = 2.0**-24
WIDEST_RANGE = 1 << 16  # of randint: no number is likelier than another by more than 2**-8
_LEAST = 2.0**-25  # of an exponential before it is scaled: PyTorch's are never zero


def _uniform(site: LoweringSite, generator: Any = None, shape: tuple[int, ...] | None = None) -> Value:
    if generator is not None:
        raise UnsupportedOperatorForm(
            "the seed of a compiled program comes from PyTorch's default generator",
            "leave out `generator=`, and use torch.manual_seed",
        )
    return site.random.uniform(site.shape if shape is None else shape, site.draw, shard_of(site.node))


def _positive(site: LoweringSite, generator: Any = None) -> Value:
    """Uniform in (0, 1], down to 2**-48."""
    b = site.b
    coarse, fine = _uniform(site, generator), _uniform(site)
    return b.add(coarse, b.multiply(b.subtract(1.0, fine), FRACTION))


def _normal(site: LoweringSite, generator: Any = None) -> Value:
    """Box and Muller's method: its tail reaches to 8.1 standard deviations."""
    b = site.b
    radius = b.sqrt(b.multiply(b.log(_positive(site, generator)), -2.0))
    return b.multiply(radius, b.cosine(b.multiply(_uniform(site), 2 * pi)))


def _moved(site: LoweringSite, x: Value, factor: Any, offset: Any) -> Value:
    """factor * x + offset, both numbers or tensors."""
    b = site.b
    scaled = b.multiply(x, site.wide(factor)) if isinstance(factor, Value) or factor != 1 else x
    return site.cast(b.add(scaled, site.wide(offset)) if isinstance(offset, Value) or offset != 0 else scaled)


# -- uniform and of two values --------------------------------------------------------------------------------------


@lowers("rand.default", "rand_like.default")
def rand(site, *rest, generator=None, **where):
    return _below_one(site, _uniform(site, generator))


@lowers("uniform.default")
def uniform(site, x, low=0.0, high=1.0, generator=None):
    """In [low, high): what would round up to `high` becomes the number before it."""
    b, u = site.b, _uniform(site, generator)
    if (low, high) == (0.0, 1.0):
        return _below_one(site, u)
    kind = site.dtype.numpy.type
    before = float(np.nextafter(kind(high), kind(low)))
    return site.cast(b.minimum(b.add(b.multiply(u, high - low), low), before))


def _below_one(site: LoweringSite, u: Value) -> Value:
    """In the result's format, and below one there too: a narrow format would round the last numbers up."""
    kept = {"bfloat16": 8, "float16": 11}.get(site.dtype.name)
    if kept is None:
        return site.cast(u)
    b = site.b
    return site.cast(b.multiply(b.floor(b.multiply(u, 2.0**kept)), 2.0**-kept))


@lowers("bernoulli.p")
def bernoulli(site, x, p=0.5, generator=None):
    """One with probability p."""
    return site.b.convert(site.b.compare(_uniform(site, generator), "LT", p), site.dtype)


@lowers("bernoulli.default")
def bernoulli_tensor(site, x, generator=None):
    return site.b.convert(site.b.compare(_uniform(site, generator), "LT", site.wide(x)), site.dtype)


@lowers("bernoulli.Tensor")
def bernoulli_of(site, x, p, generator=None):
    p = site.b.broadcast_to(site.wide(p), site.shape)
    return site.b.convert(site.b.compare(_uniform(site, generator), "LT", p), site.dtype)


@lowers("native_dropout.default")
def native_dropout(site, x, p, train):
    """What is kept (probability 1 - p) is scaled up so that the expectation stays; also the mask."""
    b = site.b
    if train is False or p == 0:
        return x, b.constant(True, shape=x.shape)
    keep = b.compare(_uniform(site, shape=x.shape), "GE", p)
    scale = 0.0 if p >= 1 else 1.0 / (1.0 - p)
    return site.cast(b.select(keep, b.multiply(site.wide(x), scale), 0.0)), keep


@lowers("native_dropout_backward.default")
def native_dropout_backward(site, grad, keep, scale):
    b = site.b
    return site.cast(b.select(keep, b.multiply(site.wide(grad), scale), 0.0))


# -- normal and its kin ---------------------------------------------------------------------------------------------


@lowers("randn.default", "randn_like.default")
def randn(site, *rest, generator=None, **where):
    return site.cast(_normal(site, generator))


@lowers("normal_functional.default")
def normal_functional(site, x, mean=0.0, std=1.0, generator=None):
    return _moved(site, _normal(site, generator), std, mean)


@lowers("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal(site, mean, std=1.0, *size, generator=None, **where):
    mean, std = (site.b.broadcast_to(site.wide(v), site.shape) if isinstance(v, Value) else v for v in (mean, std))
    return _moved(site, _normal(site, generator), std, mean)


@lowers("log_normal.default")
def log_normal(site, x, mean=1.0, std=2.0, generator=None):
    b = site.b
    return site.cast(b.exponential(b.add(b.multiply(_normal(site, generator), std), mean)))


@lowers("exponential.default")
def exponential(site, x, lambd=1.0, generator=None):
    """-log(u) / lambda, never zero."""
    b = site.b
    waited = b.maximum(b.negate(b.log(_positive(site, generator))), _LEAST)
    return site.cast(b.multiply(waited, 1.0 / lambd))


@lowers("geometric.default")
def geometric(site, x, p, generator=None):
    """How many trials until the first success: 1, 2, ..."""
    b = site.b
    if p >= 1:
        return site.b.constant(1, site.dtype, site.shape)
    trials = b.ceil(b.multiply(b.log(_positive(site, generator)), 1.0 / log1p(-p)))
    return site.cast(b.maximum(trials, 1.0))


@lowers("cauchy.default")
def cauchy(site, x, median=0.0, sigma=1.0, generator=None):
    """The tangent of a uniform angle between -pi / 2 and pi / 2."""
    b = site.b
    angle = b.multiply(b.subtract(_uniform(site, generator), 0.5 - 0.5 * FRACTION), pi)
    return _moved(site, b.divide(b.sine(angle), b.cosine(angle)), sigma, median)


# -- whole numbers --------------------------------------------------------------------------------------------------


def _whole(site: LoweringSite, low: int, high: int, generator: Any = None) -> Value:
    """floor(u * n) + low for n = high - low numbers."""
    b, count = site.b, int(high) - int(low)
    if count > WIDEST_RANGE:
        raise UnsupportedOperatorForm(
            f"of {count} whole numbers, made of 24 random bits, some would be likelier than others",
            f"draw at most {WIDEST_RANGE} different ones, or draw them on the host, before the step",
        )
    place = b.minimum(b.floor(b.multiply(_uniform(site, generator), float(count))), float(count - 1))
    return b.convert(b.add(b.convert(place, int32), int(low)), site.dtype)


@lowers("randint.default")
def randint(site, high, *size, generator=None, **where):
    return _whole(site, 0, high, generator)


@lowers("randint.low")
def randint_from(site, low, high, *size, generator=None, **where):
    return _whole(site, low, high, generator)


@lowers("randint_like.default")
def randint_like(site, x, high, generator=None, **where):
    return _whole(site, 0, high, generator)


@lowers("randint_like.low_dtype")
def randint_like_from(site, x, low, high, generator=None, **where):
    return _whole(site, low, high, generator)


@lowers("random.to")
def random_to(site, x, high, generator=None):
    return _whole(site, 0, high, generator)


@lowers("random.from")
def random_from(site, x, low, high, generator=None):
    if high is None:
        return random_any(site, x)
    return _whole(site, low, high, generator)


# -- what needs more than a number per element ----------------------------------------------------------------------


@lowers("random.default")
def random_any(site, x, generator=None):
    raise UnsupportedOperatorForm(
        "all numbers of a format take more than 24 random bits", f"x.random_(0, n), n up to {WIDEST_RANGE}"
    )


@lowers("randperm.default")
def randperm(site, n, **where):
    return _permutation(site, n)


@lowers("randperm.generator")
def randperm_of(site, n, generator=None, **where):
    return _permutation(site, n, generator)


def _permutation(site: LoweringSite, n: int, generator: Any = None) -> Value:
    """The places of n random numbers in their order. Of two that are equal, which of 8192 numbers four are likely to
    be, the first comes first."""
    if n * n > MOST_COMPARED:
        raise UnsupportedOperatorForm(
            f"a permutation of {n} numbers compares {n * n:,} pairs", "draw it on the host, before the step"
        )
    if n == 0:
        return site.b.constant(0, site.dtype, site.shape)
    return site.cast(rank_of(site, _uniform(site, generator), False))


@lowers("multinomial.default")
def multinomial(site, probabilities, count, replacement=False, generator=None):
    raise UnsupportedOperatorForm(
        "it has no lowering",
        "for one draw take (log(p) - log(e)).argmax(-1), e = torch.empty_like(p).exponential_(); or draw on the host",
    )


@lowers("poisson.default", "binomial.default", "_standard_gamma.default")
def by_rejection(site, *rest, **where):
    raise UnsupportedOperatorForm(
        "it takes a number of tries that depends on what is drawn", "draw it on the host, before the step"
    )

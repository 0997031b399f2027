# SPDX-License-Identifier: Apache-2.0
"""Convolutions and windows, linear algebra, random numbers, loops, special functions, images."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tools.jaxgrid.case import FLOATS, Case, Function, numbers, of_one

_LAYOUT = ("NCHW", "OIHW", "NCHW")
_CONVOLUTIONS = {
    "lax.conv": lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
    "lax.conv, strided": lambda x, w: lax.conv(x, w, (2, 2), "VALID"),
    "lax.conv_transpose": lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=_LAYOUT),
}


def _windows(function, start, window, strides, padding):
    return lambda x: lax.reduce_window(x, x.dtype.type(start), function, window, strides, padding)


def _pooled(x):
    window = (1, 1, 2, 2)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID").astype("float32").sum()


_WINDOWS = {
    "lax.reduce_window, max": _windows(lax.max, -1e4, (1, 1, 2, 3), (1, 1, 2, 2), "SAME"),
    "lax.reduce_window, min": _windows(lax.min, 1e4, (1, 1, 2, 3), (1, 1, 2, 2), "VALID"),
    "lax.reduce_window, add": _windows(lax.add, 0, (1, 1, 2, 3), (1, 1, 1, 2), "VALID"),
    "lax.batch_matmul": lambda x: lax.batch_matmul(x, x.swapaxes(-1, -2)),
    "lax.reduce_precision": lambda x: lax.reduce_precision(x, 5, 4),
    "grad of lax.reduce_window, max": jax.grad(_pooled),
}
_ALGEBRA = {
    "linalg.cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + 4 * jnp.eye(4)),
    "linalg.inv": lambda a: jnp.linalg.inv(a + 5 * jnp.eye(4)),
    "linalg.det": jnp.linalg.det,
    "linalg.solve": lambda a: jnp.linalg.solve(a + 5 * jnp.eye(4), a),
    "linalg.qr": lambda a: jnp.linalg.qr(a)[1],
    "linalg.eigvalsh": lambda a: jnp.linalg.eigvalsh(a + a.T),
    "linalg.svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
    "lax.linalg.triangular_solve": lambda a: lax.linalg.triangular_solve(
        a + 5 * jnp.eye(4), a, lower=True, left_side=True
    ),
    "scipy.linalg.expm": lambda a: jax.scipy.linalg.expm(a * 0.1),
    "fft.fft": lambda a: abs(jnp.fft.fft(a)),
}
_RANDOM = {
    "uniform": lambda k: jax.random.uniform(k, (5, 6)),
    "normal": lambda k: jax.random.normal(k, (5, 6)),
    "bernoulli": lambda k: jax.random.bernoulli(k, 0.3, (9,)),
    "randint": lambda k: jax.random.randint(k, (9,), 0, 50),
    "categorical": lambda k: jax.random.categorical(k, jnp.arange(6.0)),
    "permutation": lambda k: jax.random.permutation(k, 9),
    "choice": lambda k: jax.random.choice(k, 9, (4,)),
    "choice, p": lambda k: jax.random.choice(k, 4, (3,), p=jnp.array([0.1, 0.2, 0.3, 0.4])),
    "gamma": lambda k: jax.random.gamma(k, 2.0, (4,)),
    "exponential": lambda k: jax.random.exponential(k, (5,)),
    "gumbel": lambda k: jax.random.gumbel(k, (5,)),
    "laplace": lambda k: jax.random.laplace(k, (5,)),
    "truncated_normal": lambda k: jax.random.truncated_normal(k, -1.0, 1.0, (5,)),
    "split": lambda k: jax.random.split(k, 4),
    "fold_in": lambda k: jax.random.fold_in(k, 7),
    "bits": lambda k: jax.random.bits(k, (6,)),
    "beta": lambda k: jax.random.beta(k, 2.0, 3.0, (4,)),
    "dirichlet": lambda k: jax.random.dirichlet(k, jnp.ones(3)),
    "poisson": lambda k: jax.random.poisson(k, 3.0, (5,)),
    "rademacher": lambda k: jax.random.rademacher(k, (5,)),
    "orthogonal": lambda k: jax.random.orthogonal(k, 3),
}
_OTHERS = {
    "lax.scan": lambda x: lax.scan(lambda c, t: (c + t, c), jnp.zeros_like(x[0]), x),
    "lax.associative_scan, add": lambda x: lax.associative_scan(jnp.add, x),
    "lax.associative_scan, maximum": lambda x: lax.associative_scan(jnp.maximum, x, axis=1),
    "lax.cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "lax.map": lambda x: lax.map(lambda t: t * 2, x),
    "lax.reduce, own function": lambda x: lax.reduce(x, x.dtype.type(0), lambda a, b: a + b * 1, (1,)),
    "lax.argmax": lambda x: lax.argmax(x, 1, "int32"),
    "lax.clamp": lambda x: lax.clamp(x.dtype.type(-1), x, x.dtype.type(1)),
    "jnp.max of NaN": lambda x: jnp.max(jnp.where(x > 1, jnp.nan, x)),
    "lax.approx_max_k": lambda x: lax.approx_max_k(x, 3),
    "jnp.vander": lambda x: jnp.vander(x[0], 3),
    "jnp.apply_along_axis": lambda x: jnp.apply_along_axis(jnp.sum, 0, x),
    "jnp.logspace": lambda x: x[0, 0] * jnp.logspace(0, 1, 5, dtype=x.dtype),
    "jnp.meshgrid": lambda x: jnp.meshgrid(x[0], x[1]),
    "lax.reduce_and": lambda x: lax.reduce_and((x > 0), (1,)),
    "lax.reduce_xor": lambda x: lax.reduce_xor(x.astype("int32"), (1,)),
    "lax.betainc": lambda x: lax.betainc(abs(x) + 1, abs(x) + 2, jax.nn.sigmoid(x)),
    "lax.igamma": lambda x: lax.igamma(abs(x) + 1, abs(x)),
    "lax.zeta": lambda x: lax.zeta(abs(x) + 2, abs(x) + 1),
    "image.resize, bilinear": lambda x: jax.image.resize(x, (10, 9), "bilinear"),
    "image.resize, nearest": lambda x: jax.image.resize(x, (10, 9), "nearest"),
    "scipy.special.xlogy": lambda x: jax.scipy.special.xlogy(abs(x), abs(x) + 1),
    "scipy.special.entr": lambda x: jax.scipy.special.entr(abs(x)),
    "scipy.special.ndtri": lambda x: jax.scipy.special.ndtri(jax.nn.sigmoid(x)),
    "scipy.stats.norm.logpdf": jax.scipy.stats.norm.logpdf,
    "jnp.linalg.norm": jnp.linalg.norm,
    "jnp.linalg.matrix_power": lambda x: jnp.linalg.matrix_power(x[:, :5], 3),
}


def _with_key(function: Function) -> Function:
    """The function of a key's words."""
    return lambda words: function(jax.random.wrap_key_data(words))


def cases() -> Iterator[Case]:
    """All of them; of linear algebra in float32 alone."""
    for name, function in _CONVOLUTIONS.items():
        for dtype in FLOATS:
            yield Case(name, dtype, function, (numbers((2, 3, 9, 8), dtype), numbers((4, 3, 3, 3), dtype)))
    yield from of_one(_WINDOWS, FLOATS, shape=(2, 3, 9, 8))
    yield from of_one(_ALGEBRA, ("float32",), shape=(4, 4))
    yield from of_one(_OTHERS, FLOATS)
    for name, function in _RANDOM.items():
        yield Case(f"random.{name}", "key", _with_key(function), (np.array([0, 3], np.uint32),))  # of key(3)

# SPDX-License-Identifier: Apache-2.0
"""XLA on the CPU as the oracle of what StableHLO means."""

from __future__ import annotations

import jax
import numpy as np

from trnlab.frontends.stablehlo import import_module
from trnlab.graph.interpret import interpret


def interpreter(graph):
    """Runs a graph by its meaning."""
    return lambda arrays: interpret(graph, arrays)


def keys(array):
    """An array as NumPy's; a key as its words."""
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array)


def against_xla(function, *args, exact=False, tolerance=1e-5, runner=interpreter, **options):
    """Import what JAX writes of `function`, run it, and compare with jax.jit; returns the program.

    exact: the same bits, of NaN whether it is one.
    """
    jitted = jax.jit(function, keep_unused=True)
    program = import_module(jitted.lower(*args).compiler_ir("stablehlo"), "f", **options)
    held = [a.astype(np.uint8) if a.dtype == np.bool_ else a for a in map(keys, jax.tree.leaves(args))]
    found = program.load(runner)(held)
    wanted = [keys(w) for w in jax.tree.leaves(jitted(*args))]
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted):
        assert ours.shape == theirs.shape
        if exact:
            assert np.dtype(ours.dtype).itemsize == theirs.dtype.itemsize
            np.testing.assert_array_equal(_signed(ours), _signed(theirs))
        else:
            np.testing.assert_allclose(_wide(ours), _wide(theirs), rtol=tolerance, atol=tolerance)
    return program


def _wide(array):
    return np.asarray(array).astype(np.float64)


def _signed(array):
    """Numbers as float64, and beside them the signs of zeros."""
    wide = _wide(array)
    return np.stack([wide, np.where(wide == 0, np.signbit(wide), 0)])

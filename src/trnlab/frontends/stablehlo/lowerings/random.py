# SPDX-License-Identifier: Apache-2.0
"""Random bits whose algorithm the module names."""

from __future__ import annotations

from trnlab.frontends.stablehlo import mlir, wide
from trnlab.frontends.stablehlo.entries import TracedValue
from trnlab.frontends.stablehlo.mlir import UINT64
from trnlab.frontends.stablehlo.registry import OpSite, UnsupportedForm, lowers
from trnlab.graph.ir import TensorType
from trnlab.numerics import philox
from trnlab.numerics.dtypes import uint32


@lowers("stablehlo.rng_bit_generator")
def rng_bit_generator(site: OpSite) -> list[TracedValue]:
    """Philox, in the order of XLA on the CPU, which takes it by default, too.

    A state has 64-bit words: a key and a counter of two, or of one; then the key is the counter's upper half, too.
    """
    (state,), (_, kind) = site.operands, site.types
    algorithm = mlir.word(site.raw, "rng_algorithm")
    known_form = state.shape in ((2,), (3,)) and state.type.dtype is UINT64 and kind.dtype is uint32
    if algorithm not in ("PHILOX", "DEFAULT") or not known_form:
        raise UnsupportedForm(
            f"{kind} of random bits by {algorithm}, from a state {state.type}",
            "use 32-bit words of Philox (tf.random.stateless_*, Keras' layers), or JAX's default keys",
        )
    key, low, *rest = (_word(site, state, i) for i in range(state.shape[0]))
    words = site.op("concatenate", *(wide.split(site.t, e) for e in (key, low, *(rest or [key]))), dimension=0)
    words = site.op("reshape", words, shape=(philox.STATE_WORDS,))
    bits = site.written(lambda w: site.b.rng_philox(kind.shape, w), words, kinds=[kind])
    moved = site.op("add", low, site.t.number(-(-kind.size // philox.LANES), UINT64, (1,)))
    carried = site.op("convert", site.op("compare", moved, low, comparison_direction="LT"), dtype=UINT64)
    return [site.op("concatenate", key, moved, *(site.op("add", e, carried) for e in rest), dimension=0), bits]


def _word(site: OpSite, state: TracedValue, place: int) -> TracedValue:
    return site.op("slice", state, start_indices=(place,), limit_indices=(place + 1,), strides=(1,))


@lowers("stablehlo.rng")
def rng(site: OpSite) -> TracedValue:
    """Refused: whose bits these are is left open."""
    kind: TensorType = site.type
    raise UnsupportedForm(
        f"random numbers {kind} that no seed decides",
        "use tf.random.stateless_uniform with a seed, or a keras.random.SeedGenerator",
    )

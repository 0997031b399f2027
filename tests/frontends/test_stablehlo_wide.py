# SPDX-License-Identifier: Apache-2.0
"""Unsigned integers of 64 bits while a program runs, and the generator that needs them: XLA's bits on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from stablehlo_oracle import against_xla, interpreter  # noqa: E402

from trnlab.errors import NumericsError, UnsupportedOpError  # noqa: E402
from trnlab.frontends.common.engine import checked  # noqa: E402
from trnlab.frontends.stablehlo import import_module  # noqa: E402

EDGES = np.array([0, 1, 2, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32)
LOW, HIGH = (np.ascontiguousarray(a.reshape(-1)) for a in np.meshgrid(EDGES, EDGES))


def words(x):
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def whole(low, high):
    return low.astype(jnp.uint64) | high.astype(jnp.uint64) << np.uint64(32)


FUNCTIONS = {
    "add": lambda x, y: words(x + y),
    "subtract": lambda x, y: words(x - y),
    "multiply": lambda x, y: words(x * y),
    "by a number": lambda x, y: words(x.astype(jnp.uint32).astype(jnp.uint64) * np.uint64(0xD2511F53)),
    "bits": lambda x, y: words((x & y) ^ (~x | y)),
    "shifts": lambda x, y: [words(x << np.uint64(n)) + words(y >> np.uint64(n)) for n in (0, 1, 31, 32, 33, 63)],
    "compare": lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y),
    "select": lambda x, y: words(jnp.where(x < y, x, y)),
    "move": lambda x, y: words(jnp.concatenate([x[::2].reshape(1, -1), y[:41].reshape(1, -1)]).T[3:5]),
    "convert": lambda x, y: (
        x.astype(bool),
        x.astype(jnp.int32),
        *words((x.astype(jnp.int32) - 5).astype(jnp.uint64)),
    ),
    "bitcast": lambda x, y: lax.bitcast_convert_type(lax.bitcast_convert_type(x + y, jnp.uint32), jnp.uint64) > y,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pairs_of_words_are_xlas_64_bits(name):
    function = FUNCTIONS[name]
    with jax.enable_x64(True):
        against_xla(
            lambda a, b, c, d: function(whole(a, b), whole(c, d)),
            LOW,
            HIGH,
            LOW[::-1].copy(),
            HIGH[::-1].copy(),
            exact=True,
        )


@pytest.mark.parametrize("algorithm", ["RNG_PHILOX", "RNG_DEFAULT"])
@pytest.mark.parametrize("shape", [(), (5,), (3, 7, 2)])
def test_random_bits_are_xlas(algorithm, shape):
    key = np.array([7, 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFF], np.uint32)
    chosen = getattr(lax.RandomAlgorithm, algorithm)
    against_xla(lambda k: lax.rng_bit_generator(k, shape, algorithm=chosen), key, exact=True)


def test_a_state_of_three_words_carries_into_the_third():
    text = """func.func @main(%w: tensor<3x2xui32>) -> (tensor<3x2xui32>, tensor<9xui32>) {
      %s = stablehlo.bitcast_convert %w : (tensor<3x2xui32>) -> tensor<3xui64>
      %t, %b = stablehlo.rng_bit_generator %s, algorithm = PHILOX :
          (tensor<3xui64>) -> (tensor<3xui64>, tensor<9xui32>)
      %v = stablehlo.bitcast_convert %t : (tensor<3xui64>) -> tensor<3x2xui32>
      return %v, %b : tensor<3x2xui32>, tensor<9xui32>
    }"""
    state = np.array([[1, 2], [0xFFFFFFFF, 0xFFFFFFFF], [9, 0]], np.uint32)
    after, bits = import_module(text).load(interpreter)([state])
    np.testing.assert_array_equal(after, np.array([[1, 2], [2, 0], [10, 0]], np.uint32))
    later = import_module(text).load(interpreter)([np.array([[1, 2], [0, 0], [10, 0]], np.uint32)])[1]
    np.testing.assert_array_equal(bits[4:], later[:5])


def test_rows_are_taken_away_where_they_are_named():
    """What an optimizer does with an embedding's gradient in TensorFlow; a row may come twice."""
    text = """func.func @main(%x: tensor<4x2xf32>, %i: tensor<3xi32>, %u: tensor<3x2xf32>) -> tensor<4x2xf32> {
      %r = "stablehlo.scatter"(%x, %i, %u) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %d = stablehlo.subtract %a, %b : tensor<f32>
          stablehlo.return %d : tensor<f32>
      }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0],
          scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
        : (tensor<4x2xf32>, tensor<3xi32>, tensor<3x2xf32>) -> tensor<4x2xf32>
      return %r : tensor<4x2xf32>
    }"""
    x, ids = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([1, 3, 1], np.int32)
    update = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    expected = x.copy()
    np.subtract.at(expected, ids, update)
    np.testing.assert_array_equal(import_module(text).load(interpreter)([x, ids, update])[0], expected)


def test_64_bits_are_no_result():
    with jax.enable_x64(True):
        module = jax.jit(lambda a: a.astype(jnp.uint64) + np.uint64(1)).lower(EDGES).compiler_ir("stablehlo")
        with pytest.raises(UnsupportedOpError) as caught:
            import_module(module)
    assert caught.value.code == "TRN232"


def test_a_sum_that_is_not_chosen_may_leave_32_bits():
    """floor-mod of 64-bit integers adds the divisor to remainders below zero, and throws the other sums away."""
    x = np.array([5, -5, 2147483640, -2147483640, 0], np.int64)
    with jax.enable_x64(True):
        module = jax.jit(lambda x: x % np.int64(2147483646)).lower(x).compiler_ir("stablehlo")
    program = import_module(module)
    run = checked(program.graph, interpreter(program.graph))
    np.testing.assert_array_equal(run([x.astype(np.int32)])[0], x % 2147483646)


def test_a_sum_that_is_chosen_may_not():
    with jax.enable_x64(True):
        big = np.array([2**30], np.int64)
        module = jax.jit(lambda x: jnp.where(x > 0, x + x, x)).lower(big).compiler_ir("stablehlo")
    program = import_module(module)
    with pytest.raises(NumericsError, match="does not fit"):
        checked(program.graph, interpreter(program.graph))([big.astype(np.int32)])

# SPDX-License-Identifier: Apache-2.0
"""Functions of jax.numpy, jax.lax, jax.nn and jax.random on the simulated chip, beside jax.jit on the CPU."""

# SPDX-License-Identifier: Apache-2.0
"""Inputs and NumPy references for published kernels that come without a runner that works on this machine.

A case is found by the end of its file's name; it takes the file's names and returns pairs (result, reference).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Names = dict[str, Any]
Pairs = Iterator[tuple[Any, Any]]
TOLERANCE = {f"attn_fwd_{v}": 1e-2 for v in ("v7", "v8", "v8a", "v9", "v10", "v11")}  # they compute in bfloat16
MUST_FAIL = {  # scripts and tests that show a mistake: the error each must get
    "layout-violation.py": "TRN404",
    "test_indirect_load_oob_err_negative": "a row that does not exist",
    "test_indirect_store_oob_err_negative": "a row that does not exist",
}
DISAGREE = {  # tests that the specification contradicts, and how
    "test_activation": "the kernel asks for bfloat16, and is rounded to it; the test allows 1e-5",
}
ARGUMENTS = {"layernorm_torch.py": ("--nrows", "256", "--ncols", "1024")}  # smaller than by default
TARGETS = {"mxfp-matmul": "trn3"}  # folders of kernels for one generation
CASES: dict[str, tuple[str, Callable[[Names], Pairs]]] = {}


def environment(file: str) -> dict[str, str]:
    """Variables for the process that runs a file."""
    target = next((target for folder, target in TARGETS.items() if f"/{folder}/" in file), None)
    return {} if target is None else {"NEURON_PLATFORM_TARGET_OVERRIDE": target}


def case(file: str) -> Callable[[Callable[[Names], Pairs]], Callable[[Names], Pairs]]:
    """Register a case for files whose name ends so."""

    def register(function: Callable[[Names], Pairs]) -> Callable[[Names], Pairs]:
        CASES[function.__name__] = (file, function)
        return function

    return register


def for_file(name: str) -> list[str]:
    """Cases of a file."""
    return [case for case, (file, _) in CASES.items() if name.endswith(file)]


def run(name: str, names: Names) -> int:
    """Run a case; the exit status is 1 where a result is wrong."""
    for result, reference in CASES[name][1](names):
        result, reference = np.asarray(result, np.float32), np.asarray(reference, np.float32)
        scale = np.abs(reference).max()
        error = np.abs(result - reference).max() / scale if result.shape == reference.shape else np.inf
        if not error <= TOLERANCE.get(name, 1e-4):
            print(f"AssertionError: error {error:.2e} of the largest magnitude, {result.shape} {reference.shape}")
            return 1
    return 0


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Normal numbers, always the same."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _matmul(names: Names, kernel: str, k: int, m: int, n: int) -> Pairs:
    a, b = normal(k, m), normal(k, n, seed=1)
    yield names[kernel](a, b), a.T @ b


@case("matrix_multiplication_nki_kernels.py")
def matmul_basic(names: Names) -> Pairs:
    """One tile."""
    return _matmul(names, "nki_matmul_basic_", 128, 64, 512)


@case("matrix_multiplication_nki_kernels.py")
def matmul_tiled(names: Names) -> Pairs:
    """Loads in the inner loop."""
    return _matmul(names, "nki_matmul_tiled_", 512, 256, 1024)


@case("matrix_multiplication_nki_kernels.py")
def matmul_hoist_load(names: Names) -> Pairs:
    """Loads in outer loops."""
    return _matmul(names, "nki_matmul_hoist_load_", 512, 256, 1024)


@case("matrix_multiplication_nki_kernels.py")
def matmul_block_free_dimension(names: Names) -> Pairs:
    """Blocks of the free dimensions."""
    return _matmul(names, "nki_matmul_block_free_dimension_", 512, 256, 1024)


@case("matrix_multiplication_nki_kernels.py")
def matmul_fully_optimized(names: Names) -> Pairs:
    """All dimensions in blocks."""
    return _matmul(names, "nki_matmul_fully_optimized_", 1024, 2048, 1024)


@case("tutorials/tensor_addition/tensor_addition_nki_kernels.py")
@case("examples/tensor_addition/tensor_addition_nki_kernels.py")
def tensor_add(names: Names) -> Pairs:
    """Sum of two tensors."""
    a, b = normal(256, 1024), normal(256, 1024, seed=1)
    yield names["nki_tensor_add"](a, b), a + b


def _mamba(names: Names, kernel: str) -> Pairs:
    batch, channels, length, states = 1, 128, 512, 4
    delta, u = np.abs(normal(batch, channels, length)) * 0.1, normal(batch, channels, length, seed=1)
    a = -np.abs(normal(channels, states, seed=2))
    b, c = normal(batch, states, length, seed=3), normal(batch, states, length, seed=4)
    state = np.zeros((batch, channels, states))
    out = np.zeros((batch, channels, length))
    for t in range(length):
        step = np.exp(delta[:, :, t, None] * a[None])
        state = step * state + (delta[:, :, t] * u[:, :, t])[..., None] * b[:, None, :, t]
        out[:, :, t] = (state * c[:, None, :, t]).sum(-1)
    yield names[kernel](delta, u, a, b, c), out


@case("mamba_nki_kernels.py")
def mamba_v1(names: Names) -> Pairs:
    """Associative scan, loads inside."""
    return _mamba(names, "mamba_v1")


@case("mamba_nki_kernels.py")
def mamba_v2(names: Names) -> Pairs:
    """Loads hoisted."""
    return _mamba(names, "mamba_v2")


@case("mamba_nki_kernels.py")
def mamba_v3(names: Names) -> Pairs:
    """The sequence in tiles."""
    return _mamba(names, "mamba_v3")


def _attention(names: Names, kernel: str, length: int) -> Pairs:
    q, k, v = (np.random.default_rng(s).uniform(-1, 1, (128, length)).astype(np.float32) for s in range(3))
    scores = q.T @ k
    scores = np.exp(scores - scores.max(1, keepdims=True))
    yield names[kernel](q, k, v), (scores / scores.sum(1, keepdims=True)) @ v.T


def _attention_case(version: str) -> Callable[[Names], Pairs]:
    """v1 and v2 take one tile; later ones any length, in bfloat16 from v8a on."""
    length = {"v1": 128, "v2": 128, "v3": 512}.get(version, 1024)  # v3 keeps all scores in PSUM

    def run_kernel(names: Names) -> Pairs:
        return _attention(names, f"attn_fwd_{version}", length)

    run_kernel.__name__ = f"attn_fwd_{version}"
    return run_kernel


for _version in ("v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v8a", "v9", "v10", "v11"):
    case("attention_fwd_performance/attention_kernels.py")(_attention_case(_version))

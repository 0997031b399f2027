# SPDX-License-Identifier: Apache-2.0
"""One function of arrays of one format, and the numbers that it is given."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

Function = Callable[..., Any]
FLOATS = ("float32", "bfloat16", "float16")
WHOLE = ("int32", "uint32", "int16", "int8", "uint8")
BOOL = ("bool",)
SHAPE = (5, 7)
ANY, POSITIVE, UNIT = "any", "positive", "unit"


@dataclass(frozen=True)
class Case:
    """`name` is of the table's row, `dtype` of its column; `function` takes `arguments`."""

    name: str
    dtype: str
    function: Function
    arguments: tuple[Any, ...]


def numbers(shape: tuple[int, ...], dtype: str, kind: str = ANY, seed: int = 0) -> Any:
    """An array of NumPy (to list cases starts no device of JAX), the same whenever it is asked for.

    kind: POSITIVE numbers, or those of UNIT: -0.95 to 0.95, of whole numbers 0 and 1.
    """
    rng = np.random.default_rng(zlib.crc32(repr((shape, kind, seed)).encode()))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in WHOLE:
        whole = rng.integers(0 if dtype.startswith("u") else -9, 10, shape)
        return {ANY: whole, POSITIVE: abs(whole) + 1, UNIT: whole % 2}[kind].astype(dtype)
    normal = 2 * rng.standard_normal(shape)
    wanted = {ANY: normal, POSITIVE: abs(normal) + 0.1, UNIT: 0.95 * np.tanh(normal)}[kind]
    return wanted.astype(np.float32).astype(jnp.dtype(dtype))


def of_one(
    functions: Mapping[str, Function], dtypes: Iterable[str], kind: str = ANY, shape: tuple[int, ...] = SHAPE
) -> Iterator[Case]:
    """Functions of one array."""
    for name, function in functions.items():
        for dtype in dtypes:
            yield Case(name, dtype, function, (numbers(shape, dtype, kind),))


def of_two(
    functions: Mapping[str, Function],
    dtypes: Iterable[str],
    shapes: tuple[tuple[int, ...], ...] = (SHAPE, SHAPE),
    kinds: tuple[str, str] = (ANY, POSITIVE),
) -> Iterator[Case]:
    """Functions of two arrays."""
    for name, function in functions.items():
        for dtype in dtypes:
            x, y = (numbers(shape, dtype, kind, seed=i) for i, (shape, kind) in enumerate(zip(shapes, kinds)))
            yield Case(name, dtype, function, (x, y))


def of(module: Any, *names: str, prefix: str) -> dict[str, Function]:
    """Functions of a module by the names of table rows; those that this JAX does not have are left out."""
    return {f"{prefix}.{name}": getattr(module, name) for name in names if hasattr(module, name)}

# SPDX-License-Identifier: Apache-2.0
"""One case on the simulated chip, beside jax.jit on the CPU."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from tools.jaxgrid.case import Case
from trnlab.errors import TrnlabError
from trnlab.frontends.common.engine import DeviceEngine
from trnlab.frontends.stablehlo import import_module

EXACT, CLOSE, REFUSED, WRONG, CRASH, NOT_JAX = "exact", "close", "refused", "wrong", "crash", "not in JAX"
TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}  # of numbers, and of one


@dataclass(frozen=True)
class Verdict:
    """kind: one of the above. about: the code of a refusal, what is wrong, or where it crashed."""

    name: str
    dtype: str
    kind: str
    about: str = ""


def judge(case: Case) -> Verdict:
    """What the chip makes of a case."""

    def verdict(kind: str, about: str = "") -> Verdict:
        return Verdict(case.name, case.dtype, kind, about)

    name = f"{case.name} of {case.dtype}"
    try:
        jitted = jax.jit(case.function, keep_unused=True)
        wanted = [_array(w) for w in jax.tree.leaves(jitted(*case.arguments))]
    except (TypeError, ValueError, NotImplementedError, jax.errors.JaxRuntimeError):
        return verdict(NOT_JAX)
    try:
        program = import_module(jitted.lower(*case.arguments).compiler_ir("stablehlo"), name)
        found = program.load(DeviceEngine().compile)([_held(a) for a in jax.tree.leaves(case.arguments)])
    except TrnlabError as error:
        return verdict(REFUSED, error.code)
    except Exception:  # whatever it is, it is no refusal
        return verdict(CRASH, traceback.format_exc().strip().splitlines()[-1][:200])
    kind, about = compared(found, wanted)
    if (
        kind == WRONG
        and case.dtype in ("bfloat16", "float16")
        and compared(found, _rounded_once(case, wanted))[0] != WRONG
    ):
        kind, about = CLOSE, ""
    return verdict(kind, about)


def _rounded_once(case: Case, wanted: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """What JAX makes of the same numbers in float32, in the formats of its own results: XLA rounds each of the sums
    that a running sum in 16 bits goes through."""
    wide = [a.astype(np.float32) if a.dtype.name == case.dtype else a for a in case.arguments]
    return [_array(v).astype(w.dtype) for v, w in zip(jax.tree.leaves(jax.jit(case.function)(*wide)), wanted)]


def compared(found: Sequence[np.ndarray[Any, Any]], wanted: Sequence[np.ndarray[Any, Any]]) -> tuple[str, str]:
    """The kind of a verdict on results, and what is wrong."""
    if [np.shape(g) for g in found] != [w.shape for w in wanted]:
        return WRONG, f"shapes {[np.shape(g) for g in found]} for {[w.shape for w in wanted]}"
    kind = EXACT
    for got, want in zip(found, wanted):
        tolerance = TOLERANCE.get(want.dtype.name, 0.0)
        ours, theirs = np.asarray(got).astype(np.float64), want.astype(np.float64)
        zeros = (ours != 0) | (theirs != 0) | (np.signbit(ours) == np.signbit(theirs))
        same = (ours == theirs) & zeros | (np.isnan(ours) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            near = same | zeros & (abs(ours - theirs) <= tolerance * (1 + abs(theirs)))
        if not near.all():
            at = np.unravel_index(np.argmin(near), near.shape)
            return WRONG, f"{want.dtype.name} {list(map(int, at))}: {ours[at]} for {theirs[at]}"
        kind = kind if same.all() else CLOSE
    return kind, ""


def _array(value: Any) -> np.ndarray[Any, Any]:
    """NumPy's; of a key its words."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def _held(value: Any) -> np.ndarray[Any, Any]:
    """As the chip holds it: truth values are bytes."""
    array = _array(value)
    return array.astype(np.uint8) if array.dtype == np.bool_ else array

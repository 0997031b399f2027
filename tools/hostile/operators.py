# SPDX-License-Identifier: Apache-2.0
"""The operators that are drawn, and what PyTorch determines of each: the numbers to how many digits, signs of zeros.

A maximum of both zeros is either of them, and so is what a sum of negative zeros begins with: neither is said by IEEE
754, and PyTorch's loops differ from each other. Everything else has the sign that PyTorch gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = (torch.float32, torch.float32, torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.uint8, torch.int8, torch.int16)
NUMBERS = (*FLOATS, torch.int32, torch.uint8)
EXACT, CLOSE = 0.0, 4e-6


@dataclass(frozen=True)
class Operator:
    """tensors: how many it takes. rtol: of fp32. signed: whether PyTorch determines the signs of zeros. tiny: what
    both may call zero. scale: the magnitudes that errors are relative to, of the same arguments; else the result's.
    along: whether it takes a dimension, which comes last."""

    run: Callable[..., Any]
    tensors: int = 1
    dtypes: tuple[torch.dtype, ...] = FLOATS
    rtol: float = EXACT
    signed: bool = True
    tiny: float = 0.0
    moderate: bool = False
    scale: Callable[..., Any] | None = None
    along: bool = False


def _elementwise() -> dict[str, Operator]:
    exact = {
        "neg": torch.neg,
        "abs": torch.abs,
        "floor": torch.floor,
        "ceil": torch.ceil,
        "round": torch.round,
        "trunc": torch.trunc,
        "sign": torch.sign,
        "frac": torch.frac,
        "isnan": torch.isnan,
        "isinf": torch.isinf,
        "isfinite": torch.isfinite,
        "signbit": torch.signbit,
        "not": torch.logical_not,
        "leaky": F.leaky_relu,
        "nan_to_num": torch.nan_to_num,
        "to int": lambda x: x.nan_to_num(0, 9, -9).clamp(-9, 9).int(),
        "half": lambda x: x.half(),
        "bfloat16": lambda x: x.bfloat16(),
        "float": lambda x: x.float(),
        "masked": lambda x: x.masked_fill(x > 0, -0.0),
        "where": lambda x: torch.where(x > 0, x, 0.0),
    }
    close = {
        "exp": torch.exp,
        "expm1": torch.expm1,
        "log": torch.log,
        "log1p": torch.log1p,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "erf": torch.erf,
        "sinh": torch.sinh,
        "atan": torch.atan,
        "asinh": torch.asinh,
        "acosh": torch.acosh,
        "log2": torch.log2,
        "exp2": torch.exp2,
        "reciprocal": torch.reciprocal,
        "softsign": F.softsign,
        "softplus": F.softplus,
        "elu": F.elu,
        "hardsigmoid": F.hardsigmoid,
        "logsigmoid": F.logsigmoid,
        "log10": torch.log10,
        "celu": F.celu,
        "atanh": torch.atanh,
        "hardswish": F.hardswish,
        "logit": torch.logit,
    }
    found = {k: Operator(f) for k, f in exact.items()}
    found |= {k: Operator(f, rtol=CLOSE, tiny=1e-37) for k, f in close.items()}
    for p in (
        2,
        3,
        -1,
        0.5,
        -0.5,
        1.5,
        0,
        -2,
    ):  # PyTorch's roots of float16 are powers, of all else roots: of -0.0, too
        kinds = (torch.float32, torch.bfloat16) if abs(p) == 0.5 else FLOATS
        found[f"x**{p}"] = Operator(lambda x, p=p: x**p, 1, kinds, CLOSE, tiny=1e-37)
    for name in ("logit", "erf"):  # which PyTorch rounds on the way in 16 bits, or flushes
        scale = (lambda x: x.abs() + 4) if name == "logit" else None  # of a quotient near one
        found[name] = Operator(close[name], 1, (torch.float32,), CLOSE, tiny=1e-37, scale=scale)
    both = {"add": torch.add, "sub": torch.sub, "mul": torch.mul}
    found |= {k: Operator(f, 2, NUMBERS) for k, f in both.items()}
    found |= {
        "div": Operator(torch.div, 2, rtol=CLOSE, tiny=1e-37),
        "div trunc": Operator(lambda x, y: torch.div(x, y, rounding_mode="trunc"), 2, rtol=CLOSE),
        "div floor": Operator(lambda x, y: torch.div(x, y, rounding_mode="floor"), 2, (torch.float32,), CLOSE),
        "div trunc by .1": Operator(lambda x: torch.div(x, 0.1, rounding_mode="trunc"), rtol=CLOSE),
        "fmod .7": Operator(lambda x: torch.fmod(x.clamp(-9, 9), 0.7), rtol=CLOSE, signed=False),
        "remainder .7": Operator(lambda x: torch.remainder(x.clamp(-9, 9), 0.7), rtol=CLOSE, signed=False),
        "maximum": Operator(torch.maximum, 2, NUMBERS, signed=False),
        "minimum": Operator(torch.minimum, 2, NUMBERS, signed=False),
        "fmax": Operator(torch.fmax, 2, NUMBERS, signed=False),
        "copysign": Operator(torch.copysign, 2),
        "atan2": Operator(torch.atan2, 2, rtol=CLOSE, tiny=1e-37),
        "hypot": Operator(torch.hypot, 2, (torch.float32,), CLOSE, tiny=1e-37),
        "relu": Operator(torch.relu, signed=False),
        "clamp": Operator(lambda x: x.clamp(-0.5, 2), signed=False),
        "lt": Operator(torch.lt, 2, NUMBERS),
        "eq": Operator(torch.eq, 2, NUMBERS),
        "select": Operator(lambda x, y: torch.where(x > y, x, y), 2),
        "lerp .2": Operator(lambda x, y: torch.lerp(x, y, 0.2), 2, (torch.float32,), CLOSE, scale=_ends, tiny=1e-44),
        "lerp .9": Operator(lambda x, y: torch.lerp(x, y, 0.9), 2, (torch.float32,), CLOSE, scale=_ends, tiny=1e-44),
        "lerp": Operator(
            lambda x, y: torch.lerp(x, y, y.clamp(-1, 1)), 2, (torch.float32,), CLOSE, moderate=True, scale=_ends
        ),
        "add number": Operator(lambda x: x + 3, 1, NUMBERS),
        "subtract number": Operator(lambda x: x - 3, 1, (*FLOATS, *INTEGERS)),
        "number minus": Operator(lambda x: -7 - x, 1, (*FLOATS, *INTEGERS)),
        "times number": Operator(lambda x: x * -3, 1, (*FLOATS, *INTEGERS)),
        "larger than number": Operator(lambda x: x > -3, 1, (*FLOATS, *INTEGERS)),
        "whole quotient": Operator(lambda x: torch.div(x, -3, rounding_mode="trunc"), 1, INTEGERS),
        "floored quotient": Operator(lambda x: x // 3, 1, INTEGERS),
        "rest": Operator(lambda x: x % -3, 1, INTEGERS),
    }
    return found


def _ends(x: Tensor, y: Tensor, *_: Any) -> Tensor:
    return x.abs() + y.abs()


def _along_a_dimension() -> dict[str, Operator]:
    """Reductions, running ones, and what moves elements; the dimension is drawn."""
    sums = {
        "sum": lambda x, d: x.sum(d),
        "sum kept": lambda x, d: x.sum(d, keepdim=True),
        "sum all": lambda x, d: x.sum(),
        "mean": lambda x, d: x.mean(d),
        "cumsum": lambda x, d: x.cumsum(d),
        "1-norm": lambda x, d: torch.linalg.vector_norm(x, 1, d),
    }
    extremes = {
        "amax": lambda x, d: x.amax(d),
        "amin kept": lambda x, d: x.amin(d, keepdim=True),
        "max": lambda x, d: x.max(d)[0],
        "cummax": lambda x, d: x.cummax(d)[0],
        "inf-norm": lambda x, d: x.abs().amax(d),
        "sorted": lambda x, d: x.sort(d)[0],
    }
    moves = {
        "flip": lambda x, d: x.flip(d),
        "roll": lambda x, d: x.roll(1, d),
        "cat": lambda x, d: torch.cat([x, -x], d),
        "stack": lambda x, d: torch.stack([x, x], d),
        "first": lambda x, d: x.select(d, 0),
        "last part": lambda x, d: x.chunk(2, d)[-1],
        "split": lambda x, d: x.split(1, d)[0],
        "nothing": lambda x, d: x.narrow(d, 0, 0),
        "unfold": lambda x, d: x.unfold(d, 1, 1),
        "index_select": lambda x, d: x.index_select(d, torch.zeros(2, dtype=torch.long, device=x.device)),
        "gather": lambda x, d: x.gather(d, torch.zeros(x.shape, dtype=torch.long, device=x.device)),
        "take_along_dim": lambda x, d: x.take_along_dim(x.isnan().long().argsort(dim=d, stable=True), d),
        "swap": lambda x, d: x.transpose(0, d),
        "repeat": lambda x, d: x.repeat_interleave(2, d),
        "pad": lambda x, d: F.pad(x, (1, 2), value=-0.0),
        "movedim": lambda x, d: x.movedim(d, 0).contiguous(),
    }
    found = {
        k: Operator(f, rtol=CLOSE, signed=False, moderate=True, scale=_total, along=True) for k, f in sums.items()
    }
    found |= {k: Operator(f, dtypes=NUMBERS, signed=False, along=True) for k, f in extremes.items()}
    found |= {k: Operator(f, along=True) for k, f in moves.items()}
    found["norm of one"] = Operator(
        lambda x, d: torch.linalg.vector_norm(x.unsqueeze(d), 2, d), rtol=CLOSE, along=True, dtypes=(torch.float32,)
    )
    found["3-norm of one"] = Operator(
        lambda x, d: torch.linalg.vector_norm(x.unsqueeze(d), 3, d), rtol=CLOSE, along=True, dtypes=(torch.float32,)
    )
    found["norm"] = Operator(
        lambda x, d: torch.linalg.vector_norm(x, 2, d), rtol=CLOSE, moderate=True, along=True, tiny=1e-30
    )
    found["softmax"] = Operator(lambda x, d: x.softmax(d), rtol=2e-5, moderate=True, along=True, tiny=1e-37)
    found["var"] = Operator(lambda x, d: x.var(d, correction=0), rtol=2e-5, scale=_squares, moderate=True, along=True)
    found["whole sum"] = Operator(lambda x, d: x.sum(d, dtype=torch.int32), dtypes=INTEGERS, along=True)
    found["whole running sum"] = Operator(lambda x, d: x.cumsum(d, dtype=torch.int32), dtypes=INTEGERS, along=True)
    found["running product"] = Operator(
        lambda x, d: x.cumprod(d), dtypes=(torch.float32,), rtol=2e-5, along=True, tiny=1e-44
    )
    found["any"] = Operator(lambda x, d: x.bool().any(d), along=True)
    return found


def _total(x: Tensor, d: int) -> Tensor:
    return _finite(x).sum()


def _squares(x: Tensor, d: int) -> Tensor:
    return _finite(x).square().sum()


def _finite(x: Tensor) -> Tensor:
    return x.double().abs().nan_to_num(0, 0, 0)


def _magnitudes(x: Tensor, y: Tensor) -> Tensor:
    return _finite(x) @ _finite(y)


ELEMENTWISE = _elementwise()
ALONG = _along_a_dimension()
PRODUCTS = {"matmul": Operator(torch.matmul, 2, rtol=CLOSE, signed=False, moderate=True, scale=_magnitudes)}

# SPDX-License-Identifier: Apache-2.0
"""What kernels pass as `op=`: functions of nki.language or NumPy, by the names that the instruction set has."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from trnlab.isa.activations import ACTIVATIONS
from trnlab.isa.alu import ALIASES, ALU
from trnlab.isa.elementwise.activate2 import PRELU
from trnlab.lang.storage import refuse

_NUMPY_ALU = {"sum": "add", "amax": "max", "amin": "min", "true_divide": "divide", "absolute": "abs"}
_NUMPY_ALU |= {"prod": "multiply", "fmod": "mod", "all": "logical_and"}
_NUMPY_FUNCTIONS = {"absolute": "abs", "negative": "copy"}


def _bare(op: Any) -> str:
    name = op if isinstance(op, str) else getattr(op, "__name__", str(op))
    return str(name).removesuffix("_")


@lru_cache(maxsize=1024)
def alu_name(op: Any) -> str:
    """The ALU operator of `op`. Raises ConstraintError for what is none."""
    name = _bare(op)
    name = _NUMPY_ALU.get(name, name)
    name = ALIASES.get(name, name)
    if name not in ALU:
        refuse(
            f"{name!r} is not an ALU operator",
            limit=", ".join(sorted(ALU)),
            got=op,
            remedy="use one of these as nl.<name>",
            code="TRN412",
        )
    return name


def stage_name(op: Any) -> str:
    """As `alu_name`, for a stage that None leaves out."""
    return "bypass" if op is None else alu_name(op)


def optional_alu_name(op: Any) -> str | None:
    """As `alu_name`; None stays None."""
    return None if op is None else alu_name(op)


@lru_cache(maxsize=1024)
def function_name(op: Any) -> str:
    """The activation function of `op`. Raises ConstraintError for what is none."""
    name = _bare(op)
    name = _NUMPY_FUNCTIONS.get(name, name)
    if name not in ACTIVATIONS and name != PRELU:
        refuse(
            f"{name!r} is not an activation function",
            limit=", ".join(sorted((*ACTIVATIONS, PRELU))),
            got=op,
            remedy="use one of these as nl.<name>",
            code="TRN412",
        )
    return name

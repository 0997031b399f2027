# SPDX-License-Identifier: Apache-2.0
"""torch_neuronx: kernels as functions of tensors, and the name of the chip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from trnlab.frontends.torch.xla.names import refusing
from trnlab.nki.neuronxcc import jit
from trnlab.nki.target import default_chip

__all__ = ["assert_close", "get_platform_target", "nki_jit", "nki_op", "wrap_nki"]
assert_close = torch.testing.assert_close


def nki_jit(func: Callable[..., Any] | None = None, **options: Any) -> Any:
    """As @nki.jit of the old dialect: a kernel that returns nothing writes to its array arguments."""
    return jit(func, **options)


def wrap_nki(kernel: Any) -> Any:
    """The kernel itself, which takes tensors."""
    return kernel


def nki_op(name: str, mutates_args: Any = (), **_: Any) -> Callable[[Any], Any]:
    """A decorator of the function that launches a kernel, which it leaves as it is."""
    return lambda function: function


def get_platform_target(*_: Any) -> str:
    """The chip, e.g. trn2."""
    return default_chip().name


__getattr__ = refusing("torch_neuronx", "compile models with torch.compile(backend='neuron') or compile_step")

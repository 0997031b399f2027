# SPDX-License-Identifier: Apache-2.0
"""Weights are not saved while a script is followed: they have no values, and may lie where good ones are."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

_SAVERS = (
    ("torch", "save"), ("torch.distributed.checkpoint", "save"), ("safetensors.torch", "save_file"),
    ("safetensors.torch", "save_model"),
)  # fmt: skip


@contextmanager
def nothing_saved() -> Iterator[None]:
    """Within the block functions that save tensors do nothing."""
    with ExitStack() as stack:
        for module, name in _SAVERS:
            if importlib.util.find_spec(module.partition(".")[0]) is not None:
                stack.enter_context(_replaced(import_module(module), name))
        yield


@contextmanager
def _replaced(module: Any, name: str) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, _nothing)
    try:
        yield
    finally:
        setattr(module, name, original)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands for a function that saves."""

# SPDX-License-Identifier: Apache-2.0
"""Hooks into calls of kernels, for front ends that trace: PyTorch's and JAX's make an operation out of such a call.

A front end registers; the kernel API calls what is registered, and knows no front end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NOT_HANDLED = object()  # what a hook returns that leaves a call alone

# tracer(kernel, args, kwargs): a call of a kernel. launcher(kernel, grid): a kernel that is put on a launch grid.
Tracer = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
Launcher = Callable[[Any, Any], Any]

TRACERS: dict[str, Tracer] = {}
LAUNCHERS: dict[str, Launcher] = {}


def register(framework: str, tracer: Tracer, launcher: Launcher | None = None) -> None:
    """Have calls of kernels go through these, in the place of what the framework registered before."""
    TRACERS[framework] = tracer
    if launcher is not None:
        LAUNCHERS[framework] = launcher

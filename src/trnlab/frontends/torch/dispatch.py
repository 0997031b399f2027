# SPDX-License-Identifier: Apache-2.0
"""Python functions as kernels of PyTorch's dispatcher, which Dynamo leaves alone.

While compiled code runs, Dynamo looks at every Python frame that starts, those of our kernels too: after a graph
break it would compile the relabelling of tensors. A code object that is marked is skipped, with all that it calls.
(That is what `torch._dynamo.disable` comes to; asking for it by name would load all of Dynamo with `import torch`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

Kernel = Callable[..., Any]


def untraced(kernel: Kernel) -> Kernel:
    """The same function; Dynamo runs it as it is, and what it calls."""
    set_code_exec_strategy(kernel.__code__, _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP))
    return kernel


def implement(library: torch.library.Library, op: Any, kernel: Kernel, key: str) -> None:
    """Make `kernel` what `op` runs under a dispatch key."""
    library.impl(op, untraced(kernel), key)


def fall_back(library: torch.library.Library, kernel: Kernel, key: str) -> None:
    """Make `kernel` what every operator without one of its own runs under a dispatch key."""
    library.fallback(untraced(kernel), key)

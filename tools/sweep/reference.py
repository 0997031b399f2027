# SPDX-License-Identifier: Apache-2.0
"""What a script's step asks for, without anything of the compiler: PyTorch's own counter of operations, on the meta
device, where tensors have shapes alone.

    python -m tools.sweep.reference SCRIPT

Prints a line of JSON: `flops` of the last step, `parameters` of the model, those `trained`, their bytes and
those of the optimizer's state. What is computed again in the backward pass is counted once, as in a model's FLOPs.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tools.sweep.script import DEVICE


class MadeUpNumbers(TorchDispatchMode):
    """Where a script asks for the value of a tensor that has none, it is given one."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See the class."""
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return torch.ones((), dtype=args[0].dtype).item()
        return func(*args, **(kwargs or {}))


def counted(path: Path) -> dict[str, Any]:
    """Of a script: see the module."""
    text = path.read_text().replace(f'torch.autocast("{DEVICE}"', 'torch.autocast("cpu"')
    text = text.replace(f'"{DEVICE}"', '"meta"')
    torch.compile = lambda model=None, **_: model if model is not None else (lambda function: function)
    torch.utils.checkpoint.checkpoint = _once  # before anybody imports it from there
    torch.__future__.set_swap_module_params_on_conversion(True)  # weights that are shared stay so on another device
    counter, totals = FlopCounterMode(display=False, custom_mapping=_counts()), [0]
    optimizers: list[torch.optim.Optimizer] = []

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        totals.append(counter.get_total_flops())
        optimizers[:] = [optimizer]

    register_optimizer_step_post_hook(stepped)
    space: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    with counter, MadeUpNumbers():
        exec(compile(text, str(path), "exec"), space)
    (optimizer,) = optimizers
    trained = [p for p in space["model"].parameters() if p in optimizer.state]  # no loss hangs on others
    states = [v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v) and v.dim()]
    return {
        "flops": totals[-1] - totals[-2],
        "parameters": sum(p.numel() for p in space["model"].parameters()),
        "trained": sum(p.numel() for p in trained),
        "parameter_bytes": sum(p.numel() * p.element_size() for p in trained),
        "state_bytes": sum(v.numel() * v.element_size() for v in states),
    }


def _of_convolution_gradients(given: Any, x: Any, weight: Any, *others: Any, **_: Any) -> int:
    """Each is as many products as the convolution: PyTorch's count of that of the weights forgets the groups."""
    transposed, wanted = others[4], others[7]
    one = 2 * prod((x if transposed else given)[2:]) * given[0] * prod(weight)
    return one * sum(wanted[:2])


def _of_groups(x: Any, y: Any, *_: Any, **__: Any) -> int:
    """Each row by the matrix of its group, and so for columns and terms: PyTorch counts none."""
    rows = x[-2] * (x[0] if len(x) == len(y) == 3 else 1)
    return 2 * int(rows * x[-1] * y[-1])


def _of_groups_back(x: Any, y: Any, *_: Any, **__: Any) -> int:
    return 2 * _of_groups(x, y)


_GRADIENTS = {
    torch.ops.aten.convolution_backward: _of_convolution_gradients,
    torch.ops.aten._grouped_mm: _of_groups,
}


def _counts() -> dict[Any, Any]:
    """What is counted otherwise than by PyTorch, operators of transformers included where it is there."""
    with contextlib.suppress(ImportError, AttributeError):
        import transformers.integrations.moe  # noqa: F401

        package = torch.ops.transformers
        own = {package.grouped_mm_fallback: _of_groups, package.grouped_mm_fallback_backward: _of_groups_back}
        return {**_GRADIENTS, **own}
    return _GRADIENTS


def _once(function: Callable[..., Any], *arguments: Any, use_reentrant: Any = None, **named: Any) -> Any:
    own = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
    return function(*arguments, **{name: value for name, value in named.items() if name not in own})


if __name__ == "__main__":
    print("RESULT " + json.dumps(counted(Path(sys.argv[1]))))

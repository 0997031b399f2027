# SPDX-License-Identifier: Apache-2.0
"""Run a training step on fake tensors and write down the operators: one functional FX graph of the whole step.

Two passes. The first runs the user's code, autograd and the real `torch.optim` optimizer and records every operator,
in place ones included. The second replays that record without autograd, turns writes into new values and splits
operators that have no lowering into simpler ones. (One pass cannot do both: autograd will not run inside the
transform that removes writes.)
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode

from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.torch.draws import NoteDraws, generator_kept
from trnlab.frontends.torch.import_fx import decompositions
from trnlab.frontends.torch.locations import RecordLines

_SIMPLE = {"foreach": False, "fused": False, "capturable": True}  # optimizer switches that make a step traceable


def fake_like(mode: FakeTensorMode, tensor: Tensor, device: str | None = None) -> Tensor:
    """A tensor without data of the same shape, strides and dtype."""
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device)


def trace(function: Callable[..., Sequence[Tensor]], fakes: Sequence[Tensor], mode: FakeTensorMode) -> fx.GraphModule:
    """The functional FX graph of `function(*fakes)`; `function` takes the `RecordLines` as its first argument."""
    with (
        mode, fx_traceback.preserve_node_meta(), torch.autograd.set_multithreading_enabled(False), generator_kept(),
    ):  # fmt: skip
        lines = RecordLines()

        def recorded(*inputs: Tensor) -> Sequence[Tensor]:
            with lines, NoteDraws():
                return function(lines, *inputs)

        try:
            first = make_fx(recorded, _disable_torch_fn_metadata_mode=True)(*fakes)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _depends_on_values(error, lines) from error
    first.graph.eliminate_dead_code()
    return functionalised(first, fakes, mode)


def _depends_on_values(error: Any, lines: RecordLines) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{error.func} needs the values of a tensor while the step is being captured",
        code="TRN204",
        where=lines.failed(),
        remedy="keep .item(), conditions on tensors and indexing with masks out of the step; see torch.where",
    )


def functionalised(first: fx.GraphModule, fakes: Sequence[Tensor], mode: FakeTensorMode) -> fx.GraphModule:
    """The same graph without writes, in operators that the importer knows where there is a way."""
    replay = fx.Interpreter(first)

    def run(*inputs: Tensor) -> Any:
        return replay.run(*inputs)

    functional = torch.func.functionalize(run, remove="mutations")
    with mode, torch.no_grad(), fx_traceback.preserve_node_meta():
        second = make_fx(functional, decomposition_table=decompositions(), _disable_torch_fn_metadata_mode=True)(
            *fakes
        )
    second.graph.eliminate_dead_code()
    return second


@contextmanager
def parameters_replaced(model: nn.Module, values: dict[Any, Tensor]) -> Iterator[None]:
    """Within the block the model holds `values[p]` in place of each parameter or buffer p, tied ones included."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    with _reparametrize_module(model, {name: values[p] for name, p in named if p in values}):
        yield


@contextmanager
def optimizer_replaced(
    optimizer: torch.optim.Optimizer, values: dict[Any, Tensor], rates: Sequence[Tensor], state: dict[Any, Any]
) -> Iterator[None]:
    """Within the block the optimizer works on `values[p]` in place of p, with these learning rates and this state."""
    saved_state, saved_groups = optimizer.state, [dict(g) for g in optimizer.param_groups]
    try:
        optimizer.state = defaultdict(dict, {values[p]: dict(s) for p, s in state.items()})
        for group, rate in zip(optimizer.param_groups, rates):
            group.update({k: v for k, v in _SIMPLE.items() if k in group})
            group.update(params=[values[p] for p in group["params"]], lr=rate)
        yield
    finally:
        optimizer.state = saved_state
        for group, saved in zip(optimizer.param_groups, saved_groups):
            group.update(saved)


class TensorFactors(TorchFunctionMode):
    """Within, `alpha=` and `value=` may be tensors.

    Optimizers pass the learning rate there, for which PyTorch wants a Python number; a step that is to serve every
    learning rate needs it as an input.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        factor = kwargs.get("alpha", kwargs.get("value"))
        if not isinstance(factor, Tensor):
            return function(*args, **kwargs)
        x, y, *z = args
        kind = function.__name__.rstrip("_")
        term = {"addcmul": lambda: y * z[0], "addcdiv": lambda: y / z[0]}.get(kind, lambda: y)() * factor
        changed = x - term if kind == "sub" else x + term
        return x.copy_(changed) if function.__name__.endswith("_") else changed


def run_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """The optimizer's own step, without the profiling and the hooks around it."""
    with TensorFactors():
        inspect.unwrap(type(optimizer).step)(optimizer)


def gradients(lines: RecordLines, loss: Tensor, parameters: Sequence[Tensor], max_norm: float | None) -> None:
    """Set `.grad` of each parameter that the loss depends on, clipped to a total norm of `max_norm`."""
    wanted = [p for p in parameters if p.requires_grad]
    lines.watch(loss)
    for p, grad in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True)):
        p.grad = grad
    if max_norm is not None:
        nn.utils.clip_grad_norm_(wanted, max_norm, foreach=False)


def loss_of(result: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The loss and what else the loss function returned. Raises UsageError when it is not one number."""
    loss, *rest = result if isinstance(result, (tuple, list)) else (result,)
    if not isinstance(loss, Tensor) or loss.dim() != 0 or not loss.requires_grad:
        raise UsageError(
            "the loss of a training step must be one number that depends on the parameters", code="TRN110",
            got=f"{type(loss).__name__} {list(getattr(loss, 'shape', []))}",
            remedy="return the loss (or a tuple that starts with it) from the loss function",
        )  # fmt: skip
    return loss, tuple(r for r in rest if isinstance(r, Tensor))

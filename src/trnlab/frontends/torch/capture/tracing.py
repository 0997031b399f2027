# SPDX-License-Identifier: Apache-2.0
"""Run a training step on fake tensors and write down the operators: one functional FX graph of the whole step.

Two passes. The first runs the user's code, autograd and the real `torch.optim` optimizer and records every operator,
in place ones included. The second turns writes into new values and splits operators that have no lowering into
simpler ones: node by node (`without_writes`), or, where a write is seen through a view, by a replay of that record
without autograd. (One pass cannot do both: autograd will not run inside the transform that removes writes.)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributions import Distribution
from torch.fx import traceback as fx_traceback

from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.torch.capture import hooks
from trnlab.frontends.torch.capture.external_tensors import is_real
from trnlab.frontends.torch.capture.import_fx import decompositions
from trnlab.frontends.torch.capture.subject import Place
from trnlab.frontends.torch.capture.without_writes import without_writes
from trnlab.frontends.torch.device.types import type_of
from trnlab.frontends.torch.draws import NoteDraws, generator_kept
from trnlab.frontends.torch.findings import survey
from trnlab.frontends.torch.findings.assumed import Assumed
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.graph_templates import Functional
from trnlab.frontends.torch.parallel import sharded
from trnlab.frontends.torch.pytorch.fakes import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
    FakeTensorMode,
)
from trnlab.frontends.torch.pytorch.graphs import functions_wrapped, make_fx, not_compiled, with_parameters
from trnlab.frontends.torch.sparse.traced import SparseOperators

_INSTEAD = {  # of operators whose results have sizes that hang on values
    "aten._pack_padded_sequence.default": "run the layer on the padded batch, and mask by the lengths after it",
}
_SIMPLE = {"foreach": False, "fused": False, "capturable": True}  # optimizer switches that make a step traceable


def fake_like(mode: FakeTensorMode, tensor: Tensor, device: str | None = None) -> Tensor:
    """A tensor without data of the same shape, strides and dtype. Raises UnsupportedOpError for a sparse one."""
    if tensor.layout is not torch.strided:
        raise UnsupportedOpError(
            f"the step reads a tensor of layout {tensor.layout}, for which the chip has no form",
            code="TRN203",
            limit="torch.strided, and as arguments or from outside sparse COO, CSR and CSC",
            got=tensor.layout,
            remedy="hand over x.to_dense()",
        )
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device)


def trace(
    function: Callable[..., Sequence[Tensor]],
    fakes: Sequence[Tensor],
    mode: FakeTensorMode,
    found: Callable[[], int] = lambda: 0,
) -> fx.GraphModule:
    """The functional FX graph of `function(*fakes)`; `function` takes the `RecordLines` as its first argument.

    The last `found()` results of the function are tensors that it made to stand for further inputs. Raises
    UnsupportedOpError (TRN203) for complex inputs that the chip has no form of, whose derivatives may end in
    exceptions within autograd.
    """
    for fake in fakes:
        if fake.dtype.is_complex:
            type_of(fake)
    with (
        mode,
        fx_traceback.preserve_node_meta(),
        torch.autograd.set_multithreading_enabled(False),
        generator_kept(),
        _distributions_unchecked(),
        _functions_not_wrapped(),
    ):
        lines, gathered = RecordLines(), survey.active()

        def recorded(*inputs: Tensor) -> Sequence[Tensor]:
            assumed = Assumed(lines, gathered) if gathered is not None else nullcontext()
            with lines, NoteDraws(), assumed, SparseOperators(lines):
                return function(lines, *inputs)

        try:
            with not_compiled(True):
                first = make_fx(recorded, _disable_torch_fn_metadata_mode=True)(*fakes)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _depends_on_values(error, lines) from error
        except FakeTensorDeviceMismatchError as error:
            raise _on_two_devices(error, lines) from error
        except NotImplementedError as error:
            raise _not_on_the_device(error, lines) from error
    _leave_out_profiling(first)
    return functionalised(first, [*fakes, *_inputs_found(first, found())], mode)


@contextmanager
def _distributions_unchecked() -> Iterator[None]:
    """Within the block `torch.distributions` does not look at the values it gets unless the user has asked for it."""
    default = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(default)


@contextmanager
def _functions_not_wrapped() -> Iterator[None]:
    """Within the block FX leaves the user's globals alone.

    What `torch.fx.wrap` names it would replace while it traces (torchvision's models do so). That is for tracing by
    proxies; here operators are traced, and the step would depend on a function that is gone afterwards.
    """
    wrapped = functions_wrapped()
    held = dict(wrapped)
    wrapped.clear()
    try:
        yield
    finally:
        wrapped.update(held)


def _leave_out_profiling(module: fx.GraphModule) -> None:
    """Take out what `torch.profiler.record_function` leaves in a trace: it computes nothing."""
    for node in reversed(module.graph.nodes):
        if str(node.target).startswith("profiler."):
            module.graph.erase_node(node)


def _inputs_found(module: fx.GraphModule, count: int) -> list[Tensor]:
    """Turn the nodes behind the last `count` results into placeholders; returns their tensors."""
    if count == 0:
        return []
    output = next(n for n in module.graph.nodes if n.op == "output")
    results = list(output.args[0])
    nodes = results[len(results) - count :]
    last = [n for n in module.graph.nodes if n.op == "placeholder"][-1]
    output.args = (results[: len(results) - count],)
    for i, node in enumerate(nodes):
        with module.graph.inserting_after(last):
            last = module.graph.placeholder(f"outside_{i}")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last)
        module.graph.erase_node(node)
    module.recompile()
    return [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"][-count:]


def _depends_on_values(error: Any, lines: RecordLines | None) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{error.func} needs the values of a tensor while the step is being captured",
        code="TRN204",
        where=lines.failed() if lines is not None else None,
        remedy=_INSTEAD.get(
            str(error.func),
            "keep .item(), conditions on tensors and indexing with masks out of the step; see torch.where",
        ),
    )


def _on_two_devices(error: Exception, lines: RecordLines) -> UsageError:
    return UsageError(
        "an operator of the step gets tensors of two devices",
        code="TRN111",
        where=lines.failed(),
        got=str(error).strip().splitlines()[-1],
        remedy='move the batch and what else it reads with x.to("neuron")',
    )


def _not_on_the_device(error: Exception, lines: RecordLines) -> UnsupportedOpError:
    operator = re.search(r"'(aten::[\w.]+)'", str(error))
    what = operator[1] if operator else (str(error).splitlines() or ["an operator"])[0]
    return UnsupportedOpError(
        f"PyTorch has no form of {what} for this device",
        code="TRN201",
        where=lines.failed(),
        remedy="write it with operators that trnlab.frontends.torch.operators() lists",
    )


def functionalised(first: fx.GraphModule, fakes: Sequence[Tensor], mode: FakeTensorMode) -> fx.GraphModule:
    """The same graph without writes, in operators that the importer knows where there is a way."""
    made = without_writes(first, decompositions(), functional_of_new_ones(mode))
    if made is not None:
        made.graph.eliminate_dead_code()
        return made
    replay = fx.Interpreter(first)

    def run(*inputs: Tensor) -> Any:
        return replay.run(*inputs)

    return functional(run, fakes, mode)


def functional_of_new_ones(mode: FakeTensorMode) -> Functional:
    """`functional` of tensors like those that it is given: a tracer knows tensors by identity."""

    def graph(function: Callable[..., Any], likes: Sequence[Tensor]) -> fx.GraphModule:
        return functional(function, [fake_like(mode, x) for x in likes], mode)

    return graph


def functional(function: Callable[..., Any], fakes: Sequence[Tensor], mode: FakeTensorMode) -> fx.GraphModule:
    """The graph of a function without writes, in operators that the importer knows where there is a way."""
    traced = torch.func.functionalize(function, remove="mutations")
    with mode, torch.no_grad(), fx_traceback.preserve_node_meta(), not_compiled(True):
        try:
            module = make_fx(traced, decomposition_table=decompositions(), _disable_torch_fn_metadata_mode=True)(
                *fakes
            )
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise _depends_on_values(error, None) from error
    module.graph.eliminate_dead_code()
    return module


@contextmanager
def parameters_replaced(model: nn.Module, values: dict[Any, Tensor]) -> Iterator[None]:
    """Within the block the model holds `values[p]` in place of each parameter or buffer p, tied ones included."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    with _recurrent_kept(model), with_parameters(model, {name: values[p] for name, p in named if p in values}):
        yield


@contextmanager
def _recurrent_kept(model: nn.Module) -> Iterator[None]:
    """Recurrent layers hold their weights a second time, in a list that they renew when they see others: put back."""
    held = [(m, m._flat_weights[:], m._flat_weight_refs) for m in model.modules() if isinstance(m, nn.RNNBase)]
    try:
        yield
    finally:
        for layer, weights, references in held:
            layer._flat_weights, layer._flat_weight_refs = weights, references


@contextmanager
def optimizer_replaced(
    optimizer: torch.optim.Optimizer,
    values: dict[Any, Tensor],
    numbers: Mapping[Place, Tensor],
    state: dict[Any, Any],
    divides: bool = True,
) -> Iterator[None]:
    """Within the block the optimizer works on `values[p]` in place of p, with these numbers of groups and this state.

    divides: it may divide by the learning rate, as Adam does in the form that it has for devices (`capturable`).
    """
    simple = _SIMPLE if divides or not isinstance(optimizer, torch.optim.Adam) else {**_SIMPLE, "capturable": False}
    saved_state, saved_groups = optimizer.state, [dict(g) for g in optimizer.param_groups]
    try:
        optimizer.state = defaultdict(dict, {values[p]: dict(s) for p, s in state.items()})
        for group in optimizer.param_groups:
            group.update({k: v for k, v in simple.items() if k in group})
            group["params"] = [values[p] for p in group["params"]]
        for (i, key, at), number in numbers.items():
            group = optimizer.param_groups[i]
            held = group[key]
            group[key] = number if at is None else type(held)(number if k == at else x for k, x in enumerate(held))
        yield
    finally:
        optimizer.state = saved_state
        for group, saved in zip(optimizer.param_groups, saved_groups):
            group.clear()
            group.update(saved)


def gradients(lines: RecordLines, loss: Tensor, named: Sequence[tuple[str, Tensor, Tensor]]) -> None:
    """Set `.grad` of each parameter that the loss depends on.

    named: name, the parameter itself, and what stands for it. Hooks on gradients run where eager PyTorch runs them.
    """
    wanted = [(name, p, x) for name, p, x in named if x.requires_grad]
    _check_reached(lines.watch(loss))
    if _runs_backward_itself(loss):
        torch.autograd.backward(loss, torch.ones_like(loss))
        found = [x.grad for *_, x in wanted]
    else:
        found = torch.autograd.grad(loss, [x for *_, x in wanted], torch.ones_like(loss), allow_unused=True)
    for (name, p, x), grad in zip(wanted, found):
        x.grad = grad = sharded.placed_as(grad, x)
        if grad is not None:
            hooks.accumulated(p, x, name)


def _runs_backward_itself(loss: Tensor) -> bool:
    """Whether a reentrant checkpoint is behind the loss, which refuses `torch.autograd.grad`.

    `grad` is better where it will do: it touches no other tensor's gradient.
    """
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    return any(node.name() == "CheckpointFunctionBackward" for node in seen)


def clip(named: Sequence[tuple[str, Tensor, Tensor]], max_norm: float | None) -> None:
    """Clip the gradients to a total norm of `max_norm`. What requires no gradient has none, and counts in no norm."""
    if max_norm is not None:
        nn.utils.clip_grad_norm_([x for *_, x in named if x.requires_grad], max_norm, foreach=False)


def _check_reached(leaves: Sequence[Tensor]) -> None:
    """Every gradient must arrive at a tensor of the trace."""
    if any(is_real(leaf) for leaf in leaves):
        raise UnsupportedOpError(
            "a parameter from outside of the model goes straight into an autograd.Function",
            code="TRN142",
            remedy="make it a parameter of the model, or hand it over as p.view_as(p)",
        )


def loss_of(result: Any) -> Tensor:
    """The loss, which comes first in what the loss function returned. Raises UsageError when it is not one number."""
    loss = result[0] if isinstance(result, (tuple, list)) and result else result
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        got = f"{loss.dtype} {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        if isinstance(loss, Tensor) and loss.numel() == 1:
            got += " that does not depend on any parameter that requires a gradient"
        raise UsageError(
            "the loss of a training step must be one number that depends on the parameters",
            code="TRN110",
            got=got,
            remedy="return the loss (or a tuple that starts with it) from the loss function",
        )
    return loss

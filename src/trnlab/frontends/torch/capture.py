# SPDX-License-Identifier: Apache-2.0
"""A whole training step (forward, backward, clipping, optimizer) as one graph whose outputs overwrite its inputs.

    captured = capture_step(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y), (x, y))
    print(captured.graph)

Inputs of the graph are the batch, the parameters and buffers, the optimizer's state, one step count and one learning
rate per group; outputs are the loss and every tensor that the step changes. Parameters that count the same number of
steps share one count, and the learning rate is an input, so a schedule needs no new program.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.torch import kernels, tracing  # noqa: F401  (kernels hears of calls while PyTorch traces)
from trnlab.frontends.torch.import_fx import import_fx
from trnlab.graph.ir import Graph

LossFunction = Callable[..., Any]


@dataclass(frozen=True)
class Role:
    """What an input or output of a captured graph is.

    kind: "batch", "parameter", "buffer", "state", "count", "rate", "seed", "loss", "aux" or "gradient". `name` is for
    people. `place` finds the tensor: a parameter, buffer or batch by position, state by (parameter position, key), a
    count by the positions of its parameters, a rate by its group.
    """

    kind: str
    name: str
    place: Any = None


@dataclass
class Captured:
    """A graph with the meaning of its inputs and outputs; `kinds` are PyTorch's dtypes of the outputs."""

    graph: Graph
    inputs: list[Role]
    outputs: list[Role]
    kinds: list[torch.dtype]


@dataclass
class Subject:
    """What is trained, in a fixed order: parameters, buffers, and where the optimizer keeps what."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    parameters: dict[str, Tensor] = field(init=False)
    buffers: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.parameters = dict(self.model.named_parameters())
        self.buffers = dict(self.model.named_buffers())

    @property
    def tensors(self) -> list[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of all parameters and buffers."""
        kinds = (("parameter", self.parameters), ("buffer", self.buffers))
        return [(kind, name, t) for kind, named in kinds for name, t in named.items()]

    def state(self) -> Iterator[tuple[int, str, Tensor]]:
        """(parameter position, key, tensor) of the optimizer's state, step counts left out."""
        if self.optimizer is not None:
            for i, p in enumerate(self.parameters.values()):
                for key, value in self.optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and key != "step":
                        yield i, key, value

    def counts(self) -> list[tuple[int, ...]]:
        """Positions of parameters with equal step counts, together."""
        together: dict[float, list[int]] = {}
        if self.optimizer is not None:
            for i, p in enumerate(self.parameters.values()):
                count = self.optimizer.state.get(p, {}).get("step")
                if count is not None:
                    together.setdefault(float(count), []).append(i)
        return [tuple(group) for group in together.values()]


def prepare(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer create the state that it would create in its first step."""
    for group in optimizer.param_groups:
        missing = [p for p in group["params"] if p.requires_grad and not optimizer.state.get(p)]
        if isinstance(optimizer, torch.optim.SGD):
            if group["momentum"] != 0 and group["dampening"] == 0:  # else the first step differs from the others
                for p in missing:
                    optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)
        elif hasattr(optimizer, "_init_group") and missing:
            with _zero_gradients(missing):
                lists = len(inspect.signature(optimizer._init_group).parameters) - 1
                optimizer._init_group({**group, "params": missing}, *([] for _ in range(lists)))


@contextmanager
def _zero_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Within the block every parameter has a gradient, for optimizers pass over those without."""
    kept = [p.grad for p in parameters]
    for p in parameters:
        p.grad = torch.zeros((), dtype=p.dtype, device=p.device).expand(p.shape)
    try:
        yield
    finally:
        for p, grad in zip(parameters, kept):
            p.grad = grad


def capture_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss_fn: LossFunction | None,
    batch: Sequence[Any],
    *,
    max_norm: float | None = None,
    name: str = "train_step",
) -> Captured:
    """Capture one step of `model` on inputs like `batch`.

    loss_fn(model, *batch) returns the loss, or a tuple that starts with it; without one, the model does. Without an
    optimizer the graph returns the gradients instead of applying them. Raises UnsupportedOpError naming every
    operator without a lowering, UsageError for a loss that is not one number.
    """
    if optimizer is not None:
        prepare(optimizer)
    return _Capture(Subject(model, optimizer), loss_fn or _call, batch, max_norm).run(name)


def _call(model: nn.Module, *batch: Any) -> Any:
    return model(*batch)


class _Capture:
    """One capture: lays out the inputs, traces, imports, and reads back what the outputs are."""

    def __init__(self, subject: Subject, loss_fn: LossFunction, batch: Sequence[Any], max_norm: float | None) -> None:
        self.subject, self.loss_fn, self.max_norm = subject, loss_fn, max_norm
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.leaves, self.spec = pytree.tree_flatten(tuple(batch))
        self.roles: list[Role] = []
        self.fakes: list[Tensor] = []
        self.results: list[Role] = []
        self._lay_out()

    def _add(self, role: Role, like: Tensor, device: str | None = None) -> None:
        self.roles.append(role)
        self.fakes.append(tracing.fake_like(self.mode, like, device))

    def _lay_out(self) -> None:
        subject, optimizer = self.subject, self.subject.optimizer
        for i, leaf in enumerate(self.leaves):
            if isinstance(leaf, Tensor):
                self._add(Role("batch", f"batch{i}", i), leaf)
        for i, (kind, name, tensor) in enumerate(subject.tensors):
            self._add(Role(kind, name, i), tensor)
        names = list(subject.parameters)
        for i, key, tensor in subject.state():
            self._add(Role("state", f"{names[i]}.{key}", (i, key)), tensor, "neuron")
        if optimizer is not None:
            number, device = torch.zeros(()), "neuron"
            for group in subject.counts():
                self._add(
                    Role("count", f"step{len(self.roles)}" if len(group) < len(names) else "step", group),
                    number,
                    device,
                )
            for i in range(len(optimizer.param_groups)):
                self._add(Role("rate", f"lr{i}", i), number, device)

    # -- the traced function -----------------------------------------------------------------------------------------
    def _step(self, lines: Any, *inputs: Tensor) -> list[Tensor]:
        given = dict(zip(self.roles, inputs))
        own = {role: self._owned(role, x) for role, x in given.items() if role.kind not in ("batch", "rate")}
        tensors = [t for _, _, t in self.subject.tensors]
        values = {tensors[r.place]: x for r, x in own.items() if r.kind in ("parameter", "buffer")}
        leaves = list(self.leaves)
        for role, x in given.items():
            if role.kind == "batch":
                leaves[role.place] = x
        parameters = [values[p] for p in self.subject.parameters.values()]
        with tracing.parameters_replaced(self.subject.model, values), torch.enable_grad():
            result = self.loss_fn(self.subject.model, *pytree.tree_unflatten(leaves, self.spec))
            loss, extra = tracing.loss_of(result)
            held = dict(self.subject.model.named_buffers())
            tracing.gradients(lines, loss, parameters, self.max_norm)
        changed = {r: held[r.name] for r in own if r.kind == "buffer" and r.name in held}
        with torch.no_grad():
            changed |= self._optimized(given, own, values) if self.subject.optimizer else self._gradients(parameters)
        report = {Role("loss", "loss"): loss, **{Role("aux", f"aux{i}"): x for i, x in enumerate(extra)}}
        self.results = [*report, *changed]
        return [x.detach() for x in (*report.values(), *changed.values())]

    @staticmethod
    def _owned(role: Role, x: Tensor) -> Tensor:
        """A copy that the step may write to, so that writes never reach the traced function's inputs."""
        copy = x.detach().clone()
        return copy.requires_grad_() if role.kind == "parameter" and x.is_floating_point() else copy

    def _gradients(self, parameters: list[Tensor]) -> dict[Role, Tensor]:
        named = zip(self.subject.parameters, parameters)
        return {Role("gradient", name): p.grad for name, p in named if p.grad is not None}

    def _optimized(self, given: Any, own: Any, values: Any) -> dict[Role, Tensor]:
        """Run the optimizer and collect what it changed."""
        optimizer, originals = self.subject.optimizer, list(self.subject.parameters.values())
        assert optimizer is not None
        state: dict[Any, dict[str, Any]] = {p: dict(optimizer.state.get(p, {})) for p in originals}
        for role, x in own.items():
            if role.kind == "state":
                state[originals[role.place[0]]][role.place[1]] = x
            for i in role.place if role.kind == "count" else ():
                state[originals[i]]["step"] = x.clone()
        rates = [x for role, x in given.items() if role.kind == "rate"]
        with tracing.optimizer_replaced(optimizer, values, rates, {p: s for p, s in state.items() if s}):
            tracing.run_optimizer(optimizer)
            after = {p: optimizer.state.get(values[p], {}) for p in originals}
        changed = {role: x for role, x in own.items() if role.kind == "parameter"}
        return changed | self._state_after(state, after, own)

    def _state_after(self, before: Any, after: Any, own: Any) -> dict[Role, Tensor]:
        changed = {}
        originals, names = list(before), list(self.subject.parameters)
        for i, p in enumerate(originals):
            for key, value in after[p].items():
                if isinstance(value, Tensor):
                    if key != "step":
                        changed[Role("state", f"{names[i]}.{key}", (i, key))] = value
                elif value != before[p].get(key):
                    raise _number_in_state(self.subject.optimizer, key)
        for role in own:
            if role.kind == "count":
                changed[role] = after[originals[role.place[0]]]["step"]
        return changed

    # -- from trace to graph -----------------------------------------------------------------------------------------
    def run(self, name: str) -> Captured:
        module = tracing.trace(self._step, self.fakes, self.mode)
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node, role in zip(placeholders, self.roles):
            node.target = role.name
        of_role = {role: node.name for node, role in zip(placeholders, self.roles)}
        aliases = {i: of_role[role] for i, role in enumerate(self.results) if role in of_role}
        imported = import_fx(module, name, aliases)
        roles = {node.name: role for node, role in zip(placeholders, self.roles)}
        seed = Role("seed", "seed")
        outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
        return Captured(
            imported.graph,
            [roles[n] if n is not None else seed for n in imported.inputs],
            [self.results[i] for i in imported.outputs],
            [outputs[i].meta["val"].dtype for i in imported.outputs],
        )


def _number_in_state(optimizer: Any, key: str) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{type(optimizer).__name__} keeps {key!r} as a Python number that changes every step", code="TRN202",
        remedy="use an optimizer of torch.optim that keeps its state in tensors, such as AdamW or SGD",
    )  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""A whole training step (forward, backward, clipping, optimizer) as one graph whose outputs overwrite its inputs.

    captured = capture_step(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y), (x, y))
    print(captured.graph)

Inputs of the graph are the batch, the parameters and buffers, the optimizer's state, one step count and one learning
rate per group, and tensors that the step reads from elsewhere; outputs are the loss and every tensor that the step
changes. Parameters that count the same number of steps share one count, and the learning rate is an input, so a
schedule needs no new program. What else the step depended on is in `dependencies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from trnlab.collector import collector_paused
from trnlab.frontends.common.captured import Captured, Role
from trnlab.frontends.torch.capture import (
    hooks,
    tracing,
)
from trnlab.frontends.torch.capture.copies import copy_of, is_traced_as_it_is
from trnlab.frontends.torch.capture.dependencies import Dependencies, keep_traced, restore
from trnlab.frontends.torch.capture.external_tensors import ExternalTensors, leaf_like
from trnlab.frontends.torch.capture.import_fx import EXACT, import_fx
from trnlab.frontends.torch.capture.optimizer_numbers import OptimizerNumber, OptimizerNumbers
from trnlab.frontends.torch.capture.optimizer_updates import put_updates, run_optimizer
from trnlab.frontends.torch.capture.running_averages import averages_as_tensors
from trnlab.frontends.torch.capture.state import TorchState, visit_hooks
from trnlab.frontends.torch.capture.subject import COUNTS, RATES, Place, Subject, check_devices, prepare
from trnlab.frontends.torch.distributed.captured import collectives_of_groups
from trnlab.frontends.torch.findings.locations import RecordLines
from trnlab.frontends.torch.parallel import sharded
from trnlab.frontends.torch.parallel.data_parallel import average_gradients, forward_of_modules
from trnlab.frontends.torch.parallel.fully_sharded import captured_units, settle
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.pytorch.fakes import FakeTensorMode
from trnlab.frontends.torch.recomputation import RecomputedParts
from trnlab.frontends.torch.sparse.parts import closed, opened
from trnlab.guards.collected import collected
from trnlab.guards.state_snapshot import StateSnapshot
from trnlab.guards.watch import FunctionWatch

__all__ = ["Captured", "CapturedStep", "LossFunction", "Role", "Subject", "capture_step", "check_devices", "prepare"]

LossFunction = Callable[..., Any]


@dataclass
class CapturedStep(Captured):
    """A captured step."""

    dependencies: Dependencies  # what it depended on that is no input, and where inputs from outside are
    result: Any  # what the loss function returned, with a `LossOutput` for each tensor
    strides: list[tuple[int, ...]]  # of each output in eager mode
    numbers: list[OptimizerNumber]  # what the optimizer keeps as Python numbers and has changed


@dataclass(frozen=True)
class LossOutput:
    """A tensor among what the loss function returned: an output, or an input itself."""

    role: Role


def capture_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    loss_fn: LossFunction | None,
    batch: Sequence[Any],
    *,
    max_norm: float | None = None,
    name: str = "train_step",
    exact_counts: bool = False,
    scheduled: frozenset[Place] = frozenset(),
) -> CapturedStep:
    """Capture one step of `model` on inputs like `batch`.

    loss_fn(model, *batch) returns the loss, or a tuple that starts with it; without one, the model does. Without an
    optimizer the graph returns the gradients instead of applying them. Raises UnsupportedOpError naming every
    operator without a lowering, or what of the step cannot be captured; UsageError for a loss that is not one number.
    exact_counts, scheduled: see `Subject`.
    """
    settle(model)
    if optimizer is not None:
        hooks.check_optimizer(optimizer)
        prepare(optimizer)
    with collector_paused():
        return _Capture(Subject(model, optimizer, exact_counts, scheduled), loss_fn or _call, batch, max_norm).run(
            name
        )


def _call(model: nn.Module, *batch: Any) -> Any:
    return model(*batch)


class _Capture:
    """One capture: lays out the inputs, traces, imports, and reads back what the outputs are."""

    def __init__(self, subject: Subject, loss_fn: LossFunction, batch: Sequence[Any], max_norm: float | None) -> None:
        self.subject, self.loss_fn, self.max_norm = subject, loss_fn, max_norm
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.leaves, self.spec = pytree.tree_flatten(opened(tuple(batch)))
        self.roles: list[Role] = []
        self.reals: list[Tensor] = []
        self.fakes: list[Tensor] = []
        self.results: list[Role] = []
        self.numbers: list[OptimizerNumber] = []
        self._lay_out()
        self.snapshot = self._image()
        # Read before the trace, in which a rate that is a tensor would count as a value that the step asked for.
        self.ordinary_rates, self.given = subject.ordinary_rates(), subject.numbers()
        self.watch = FunctionWatch(self.snapshot)
        own = [t for *_, t in subject.tensors]
        self.dependencies = Dependencies(self.snapshot, self.leaves, own, subject.model.named_modules())

    def _image(self) -> StateSnapshot:
        image = StateSnapshot(TorchState(self.subject.model.modules()))
        image.visit(self.subject.model, "model")
        image.visit(self.loss_fn, "the loss function")
        visit_hooks(image)
        for i, leaf in enumerate(self.leaves):
            image.visit(leaf, f"batch[{i}]", given=True)
        for _, name, tensor in self.subject.tensors:
            image.visit(tensor, f"model.{name}", given=True)
        for name, p in self.subject.parameters.items():
            for table in hooks.gradient_hooks(p):
                image.visit(table, f"hooks on {name!r}")
        if self.subject.optimizer is not None:
            image.visit(self.subject.optimizer, "optimizer")
            for hook in hooks.pre_hooks(self.subject.optimizer):
                image.visit(hook, getattr(hook, "__name__", "a hook"))
        return image

    # -- inputs ------------------------------------------------------------------------------------------------------
    def _add(self, role: Role, like: Tensor, device: str | None = None) -> None:
        self.roles.append(role)
        self.reals.append(like)
        self.fakes.append(tracing.fake_like(self.mode, sharded.local(like), device))

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
                label = f"step{len(self.roles)}" if len(group) < len(names) else "step"
                self._add(Role("count", label, group), number, device)
            for place in subject.numbers():
                i, key, at = place
                self._add(Role("rate", f"{key}{i}" if at is None else f"{key}{i}_{at}", place), number, device)

    # -- the traced function -----------------------------------------------------------------------------------------
    def _step(self, lines: RecordLines, *inputs: Tensor) -> list[Tensor]:
        given = dict(zip(self.roles, inputs))
        own = {r: self._leaf(r, x, real) for (r, x), real in zip(given.items(), self.reals)}
        shown = [(real, own[r]) for r, real in zip(self.roles, self.reals) if r.kind not in ("count", "rate")]
        outside = ExternalTensors(shown, lines)
        with outside, torch.enable_grad(), collectives_of_groups(lines):
            result, changed = self._run(lines, outside, given, own)
        outside.give_back()
        return self._collect(result, changed, own, outside)

    def _leaf(self, role: Role, x: Tensor, real: Tensor) -> Tensor:
        if sharded.is_sharded(real):
            return sharded.leaf(real, leaf_like(x, False), self._learns(role, real))
        return leaf_like(x, self._learns(role, real))

    @staticmethod
    def _learns(role: Role, real: Tensor) -> bool:
        return role.kind in ("parameter", "batch") and real.requires_grad and real.is_leaf

    def _run(
        self, lines: RecordLines, outside: ExternalTensors, given: Any, own: Any
    ) -> tuple[Any, dict[Role, Tensor]]:
        tensors = [t for _, _, t in self.subject.tensors]
        values = {tensors[r.place]: x for r, x in own.items() if r.kind in ("parameter", "buffer")}
        leaves = list(self.leaves)
        for role, x in own.items():
            if role.kind == "batch":
                leaves[role.place] = x
        named = [(name, p, values[p]) for name, p in self.subject.parameters.items()]
        for _, p, x in named:
            hooks.take_over(p, x)
        with tracing.parameters_replaced(self.subject.model, values):
            model, parts = self.subject.model, RecomputedParts()
            with (
                self.watch,
                forward_of_modules(model),
                captured_units(model, parts),
                parts.of_checkpoints(),
                averages_as_tensors(),
            ):
                result = self.loss_fn(self.subject.model, *closed(pytree.tree_unflatten(leaves, self.spec)))
                loss = tracing.loss_of(result)
                outside.phase = "the backward pass"
                held = dict(self.subject.model.named_buffers())
                tracing.gradients(lines, loss, named)
                average_gradients(self.subject.model, named)
            tracing.clip(named, self.max_norm)
            changed = {r: held[r.name] for r in own if r.kind == "buffer" and r.name in held}
            with torch.no_grad():
                changed |= (
                    self._optimized(outside, given, own, values) if self.subject.optimizer else self._gradients(named)
                )
            result = pytree.tree_map(sharded.whole, result)
        return result, changed

    @staticmethod
    def _gradients(named: Any) -> dict[Role, Tensor]:
        return {Role("gradient", name): x.grad for name, _, x in named if x.grad is not None}

    def _optimized(self, outside: ExternalTensors, given: Any, own: Any, values: Any) -> dict[Role, Tensor]:
        """Run the optimizer and collect what it changed."""
        optimizer, originals = self.subject.optimizer, list(self.subject.parameters.values())
        assert optimizer is not None
        state: dict[Any, dict[str, Any]] = {p: dict(optimizer.state.get(p, {})) for p in originals}
        for role, x in own.items():
            if role.kind == "state":
                state[originals[role.place[0]]][role.place[1]] = x
            for i in role.place if role.kind == "count" else ():
                state[originals[i]]["step"] = copy_of(x)
        numbers = {role.place: x for role, x in given.items() if role.kind == "rate"}
        known = {id(x): self.given[place] for place, x in numbers.items() if place in self.subject.scheduled}
        kept = {p: s for p, s in state.items() if s}
        with tracing.optimizer_replaced(optimizer, values, numbers, kept, self.ordinary_rates):
            before = OptimizerNumbers(optimizer, list(state.values()))
            with self.watch:
                hooks.run_pre_hooks(optimizer)
            outside.phase = type(optimizer).__name__
            fixed = type(optimizer).__module__.startswith("torch.optim.")
            with hooks.without_hooks(optimizer), nullcontext() if fixed else self.watch:
                if not (fixed and put_updates(optimizer, numbers, known)):
                    run_optimizer(optimizer, known)
            after = {p: optimizer.state.get(values[p], {}) for p in originals}
            self.numbers = list(before.changed(list(after.values())))
        changed = {role: x for role, x in own.items() if role.kind == "parameter"}
        return changed | self._state_after(state, after, own)

    def _state_after(self, before: Any, after: Any, own: Any) -> dict[Role, Tensor]:
        changed = {}
        originals, names = list(before), list(self.subject.parameters)
        counted = {i for role in own if role.kind == "count" for i in role.place}
        for i, p in enumerate(originals):
            for key, value in after[p].items():
                if isinstance(value, Tensor) and not (key == "step" and i in counted):
                    changed[Role("state", f"{names[i]}.{key}", (i, key))] = value
        for role in own:
            if role.kind == "count":
                counts = {i: after[originals[i]]["step"] for i in role.place}
                given = {i: before[originals[i]]["step"] for i in role.place}
                moved = tuple(i for i, count in counts.items() if count is not given[i] or count._version > 0)
                if moved:  # parameters without a gradient do not count
                    changed[role if moved == role.place else Role("count", role.name, moved)] = counts[moved[0]]
        return changed

    # -- results -----------------------------------------------------------------------------------------------------
    def _collect(self, result: Any, changed: Any, own: Any, outside: ExternalTensors) -> list[Tensor]:
        """What the traced function returns; ends with the inputs that were found on the way."""
        roles = {id(x): role for role, x in own.items()}
        leaves, spec = pytree.tree_flatten(result)
        report: dict[Role, Tensor] = {}
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                role = roles.get(id(leaf)) or Role(
                    "aux" if report else "loss", f"aux{len(report) - 1}" if report else "loss"
                )
                if role not in own:
                    report[role] = leaf
                leaves[i] = LossOutput(role)
        self.result = pytree.tree_unflatten(leaves, spec)
        changed |= {r: x for r, x in own.items() if r.kind == "batch" and x._version > 0}
        found = [Role("outside", self.dependencies.add(f), i) for i, f in enumerate(outside.found)]
        self.roles += found
        self.reals += [f.real for f in outside.found]
        changed |= {r: f.owned for r, f in zip(found, outside.found) if f.written}
        self.dependencies.noted = self.watch.noted
        self.dependencies.finish(outside, self._written(changed), [sharded.local(t) for t in self.reals])
        kept = keep_traced(self.dependencies, outside)
        results = {**report, **changed, **{Role("kept", place.label, i): x for i, (place, x) in enumerate(kept)}}
        self.results = list(results)
        parts = [sharded.local(x) for x in results.values()]
        self.strides = [x.stride() for x in parts]
        shown = (x if role in own and is_traced_as_it_is(x) else x.detach() for role, x in zip(results, parts))
        return [*shown, *(f.base for f in outside.found)]

    def _written(self, changed: Any) -> list[tuple[str, Tensor]]:
        """Inputs of the user's that the step writes to."""
        return [
            (r.name, t) for r, t in zip(self.roles, self.reals) if r in changed and r.kind in ("batch", "outside")
        ]

    # -- from trace to graph -----------------------------------------------------------------------------------------
    def run(self, name: str) -> CapturedStep:
        """Trace, import, and say what is what."""
        try:
            with collected() as self.dependencies.others:
                module = tracing.trace(self._step, self.fakes, self.mode, lambda: len(self.roles) - len(self.fakes))
                return self._imported(module, name)
        finally:
            restore(self.dependencies)

    def _imported(self, module: fx.GraphModule, name: str) -> CapturedStep:
        placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
        for node, role in zip(placeholders, self.roles):
            node.target = role.name
            node.meta[EXACT] = role.kind in ("count", "rate")
        of_role = {role: node.name for node, role in zip(placeholders, self.roles)}
        aliases = {i: of_role[role] for i, role in enumerate(self.results) if role in of_role}
        imported = import_fx(module, name, aliases)
        roles = {node.name: role for node, role in zip(placeholders, self.roles)}
        shards = imported.shards
        outputs = next(n for n in module.graph.nodes if n.op == "output").args[0]
        own = {name: Role("scale", name) for name in imported.states}
        names = zip(imported.graph.inputs, imported.inputs)
        inputs = [
            roles[n] if n is not None else own.get(v.name) or Role("seed", v.name, shards.get(v.name, 0))
            for v, n in names
        ]
        imported.graph.bounds.update(self._bounds(inputs))
        return CapturedStep(
            imported.graph,
            inputs,
            [*(self.results[i] for i in imported.outputs), *own.values()],
            [*(outputs[i].meta["val"].dtype for i in imported.outputs), *(torch.float32 for _ in own)],
            self.dependencies,
            self.result,
            [*(self.strides[i] for i in imported.outputs), *((1,) for _ in own)],
            self.numbers,
        )

    def _bounds(self, inputs: Sequence[Role]) -> dict[int, tuple[float, float]]:
        """What is promised of inputs; the program divides by some of them."""
        known = {"count": COUNTS}
        if self.ordinary_rates:
            known["lr"] = RATES
        kinds = [role.place[1] if role.kind == "rate" else role.kind for role in inputs]
        return {i: known[kind] for i, kind in enumerate(kinds) if kind in known}

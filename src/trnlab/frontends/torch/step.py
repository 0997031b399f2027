# SPDX-License-Identifier: Apache-2.0
"""A training step that runs on the simulated chip as one program.

    step = compile_step(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y))
    for x, y in batches:
        loss = step(x, y)

The step updates parameters, buffers and the optimizer's state in place: they keep their identity, so checkpoints,
learning rate schedules and evaluation in eager mode work as ever. Gradients live only inside the step; `.grad` is
left alone. What the step reads beside its arguments is an input or guarded: when a number on a module, a flag, a
setting has changed, the step is captured again, and a line on stderr says why.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.common import engine
from trnlab.frontends.common.captured import Role
from trnlab.frontends.common.engine import Counted, counted
from trnlab.frontends.torch import low_precision, recording, replaying
from trnlab.frontends.torch.capture import hooks
from trnlab.frontends.torch.capture.optimizer_numbers import store
from trnlab.frontends.torch.capture.state import ambient
from trnlab.frontends.torch.capture.step_capture import CapturedStep, LossFunction, LossOutput, capture_step
from trnlab.frontends.torch.capture.subject import Place, Subject, check_devices, exactly, form, prepare, settable
from trnlab.frontends.torch.device.buffers import ChipArray, tensor_from
from trnlab.frontends.torch.device.dlpack import as_host, as_neuron
from trnlab.frontends.torch.draws import new_seed
from trnlab.frontends.torch.parallel import sharded
from trnlab.frontends.torch.parallel.fully_sharded import settle
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.sparse import parts as sparse
from trnlab.runtime.notices import say

_MOST_PROGRAMS = 32  # that one step keeps; the one that was not used for longest goes first


def compile_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: LossFunction | None = None,
    *,
    max_norm: float | None = None,
    name: str = "train_step",
) -> TrainStep:
    """A step of `optimizer` on the loss that `loss_fn(model, *batch)` returns, gradients clipped to `max_norm`.

    Without a loss function the model returns the loss. Programs are compiled on first use, one per form of the batch
    and state of what the step reads. The norm is that of all parameters that require a gradient, of the model and of
    the optimizer.
    """
    return TrainStep(model, optimizer, loss_fn, max_norm, name)


@dataclass
class _Trace:
    """One capture of the step: what it was captured for, and its program."""

    batch: Hashable
    settings: Mapping[str, Hashable]
    captured: CapturedStep
    program: engine.Program


class TrainStep:
    """See `compile_step`. `captured` is the graph of the latest call."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: LossFunction | None,
        max_norm: float | None,
        name: str,
    ) -> None:
        self.model, self.optimizer, self.loss_fn, self.max_norm, self.name = model, optimizer, loss_fn, max_norm, name
        self.captured: CapturedStep | None = None
        self._programs: list[_Trace] = []
        self._buffers: dict[Any, ChipArray] = {}
        self._said: set[str] = set()
        self._scales: dict[tuple[str, tuple[int, ...]], Tensor] = {}  # histories of amax, by name and shape
        self._exact_counts = False  # see Subject
        self._scheduled: frozenset[Place] = frozenset()  # see Subject
        self._numbers: dict[
            Place, float
        ] = {}  # of the optimizer's groups at the latest call, learning rates left out
        self._never_scheduled: frozenset[Place] = frozenset()  # an optimizer decides by them

    def __call__(self, *batch: Any) -> Any:
        """Train on one batch; returns what the loss function returns, its tensors detached."""
        eager = getattr(engine.current(), "train_step", None)
        if eager is not None:  # an engine that takes whole steps
            return eager(self, batch)
        kept = replaying.active()
        return self.train(batch) if kept is None else kept.call(self, batch)

    def train(self, batch: tuple[Any, ...]) -> Any:
        """As a call, without a look at checkpoints."""
        recording.flush()
        settle(self.model)
        prepare(self.optimizer)
        opened = self._note_schedules()
        subject = Subject(self.model, self.optimizer, self._exact_counts, self._scheduled)
        check_devices(subject)
        batch = sparse.opened(batch)
        leaves, spec = pytree.tree_flatten(batch)
        trace = self._trace(subject, batch, leaves, (str(spec), *_batch_form(leaves)), opened)
        self.captured = trace.captured
        self.optimizer._opt_called = True  # what learning rate schedulers look at, to warn about a step forgotten
        result, loss = self._run(trace, subject, leaves)
        if not trace.captured.dependencies.reusable:
            self._programs.remove(trace)
        engine.shapes_seen(self.name, [tuple(x.shape) for x in leaves if isinstance(x, Tensor)])
        engine.current().step_done(loss, learned_from(leaves)[0])
        hooks.run_post_hooks(self.optimizer)
        return result

    def state_dict(self) -> dict[str, Any]:
        """What the step keeps besides model and optimizer: histories behind the scales of FP8, and which numbers of
        the optimizer are inputs, or become some when they change: as constants they would be rounded otherwise."""
        return {
            "scales": [[name, list(shape), tensor] for (name, shape), tensor in self._scales.items()],
            "scheduled": [list(place) for place in sorted(self._scheduled, key=str)],
            "numbers": [[*place, x] for place, x in self._numbers.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self._scales = {(name, tuple(shape)): tensor.clone() for name, shape, tensor in state["scales"]}
        self._scheduled = frozenset((group, key, at) for group, key, at in state.get("scheduled", ()))
        self._numbers = {(group, key, at): x for group, key, at, x in state.get("numbers", ())}
        self._buffers = {role: known for role, known in self._buffers.items() if role.kind != "scale"}

    # -- finding a program -------------------------------------------------------------------------------------------
    def _trace(
        self,
        subject: Subject,
        batch: Any,
        leaves: list[Any],
        batch_form: Hashable,
        opened: str | None = None,
    ) -> _Trace:
        """The program for such a batch, captured if need be; opened: a new input, for which there is none yet."""
        reason = opened
        settings = {**ambient(), **subject.settings(), "max_norm": exactly(self.max_norm)}
        tensors = [t for *_, t in subject.tensors]
        for trace in reversed([t for t in self._programs if t.batch == batch_form]):
            failed = _differs(trace.settings, settings) or trace.captured.dependencies.failed(leaves, tensors)
            if failed is None:
                self._programs.remove(trace)
                self._programs.append(trace)
                return trace
            reason = reason or failed
        if reason is None and self.captured is not None:
            reason = self._single_use()
        if reason is not None:
            self._say(reason)
        told = getattr(engine.current(), "captured_again", None)
        if self.captured is not None and opened is None and told is not None:  # a new input is for good
            told(self, reason, leaves)
        return self._capture(subject, batch, batch_form, settings)

    def _note_schedules(self) -> str | None:
        """Make inputs of the optimizer's numbers that are others than at the call before; what to say of that.

        What changes once may change with every step: as an input it costs one more capture, not one per step. Whole
        numbers are sizes and flags, unless they become others.
        """
        before, self._numbers = self._numbers, settable(self.optimizer)
        floats = {place: x for place, x in self._numbers.items() if type(x) is float and place in before}
        changed = frozenset(place for place, x in floats.items() if before[place] != x)
        new = changed - self._scheduled - self._never_scheduled
        if not new:
            return None
        self._scheduled |= new
        place = min(new, key=str)
        at = "" if place[2] is None else f"[{place[2]}]"
        label = f"optimizer.param_groups[{place[0]}][{place[1]!r}]{at}"
        return f"{label} was {before[place]}, is {self._numbers[place]}: an input from now on"

    def _capture(
        self, subject: Subject, batch: Any, batch_form: Hashable, settings: Mapping[str, Hashable]
    ) -> _Trace:
        try:
            captured = capture_step(
                self.model,
                self.optimizer,
                self.loss_fn,
                batch,
                max_norm=self.max_norm,
                name=self.name,
                exact_counts=subject.exact_counts,
                scheduled=subject.scheduled,
            )
        except UnsupportedOpError as error:
            if subject.scheduled:  # without them it may do, a program for each of their values
                self._never_scheduled |= subject.scheduled
                self._scheduled = subject.scheduled = frozenset()
                return self._capture(subject, batch, batch_form, {**settings, **subject.settings()})
            if error.code != "TRN204" or subject.exact_counts or not subject.python_counts():
                raise
            say(
                f"{self.name!r} is compiled for each step by itself: {type(self.optimizer).__name__} decides by its "
                f"count of steps, a Python number ({error.where}); keep it in a tensor"
            )
            self._exact_counts = subject.exact_counts = True
            return self._capture(subject, batch, batch_form, {**settings, **subject.settings()})
        low_precision.say_unused(name for name, _ in self.model.named_modules())
        trace = _Trace(batch_form, settings, captured, engine.current().compile(captured.graph))
        self._programs = [*self._programs[1 - _MOST_PROGRAMS :], trace]
        return trace

    def _single_use(self) -> str | None:
        """Why the latest program could serve one call only."""
        assert self.captured is not None
        dependencies = self.captured.dependencies
        if dependencies.reusable:
            return None
        if dependencies.drawn:
            return f"the step draws from {dependencies.drawn[0]}, whose numbers only Python knows; see torch.rand"
        if dependencies.noted:
            return f"the step {dependencies.noted[0]}: so each step is captured by itself"
        return f"the step changed {dependencies.changes[0].label}: keep it in a tensor, or outside of the step"

    def _say(self, reason: str) -> None:
        """One line per cause, and one more when the cause comes again."""
        cause = re.split(" was | is ", reason)[0]
        if f"{cause} again" in self._said:
            return
        again = "; it is captured each time that this changes, which takes its time" if cause in self._said else ""
        self._said.add(f"{cause} again" if again else cause)
        say(f"{self.name!r} is captured again: {reason}{again}")

    # -- running -----------------------------------------------------------------------------------------------------
    def _run(self, trace: _Trace, subject: Subject, leaves: list[Any]) -> tuple[Any, float]:
        """Run the program; returns what the loss function returned, and the loss."""
        captured, program = trace.captured, trace.program
        tensors = [t for *_, t in subject.tensors]
        parameters = list(subject.parameters.values())
        made: dict[Role, Tensor]
        without_values = getattr(engine.current(), "results", None)
        if without_values is not None:
            made = without_values(self, captured, parameters, leaves, tensors)
            return self._reported(captured.result, made, tensors, leaves), 1.0
        bound = [self._bind(role, tensors, parameters, leaves) for role in captured.inputs]
        results = program([b.array() for b in bound])
        for i, j in captured.graph.aliases.items():
            bound[j].store(results[i])
        made = {}
        for i, role in enumerate(captured.outputs):
            if role.kind == "count":
                self._store_count(parameters, role, results[i])
            elif i not in captured.graph.aliases:
                made[role] = _strided(tensor_from(results[i], captured.kinds[i]), captured.strides[i])
        for role, tensor in made.items():
            if role.kind == "state":
                self.optimizer.state[parameters[role.place[0]]][role.place[1]] = tensor
        store(captured.numbers, self.optimizer, parameters)
        captured.dependencies.apply([t for r, t in made.items() if r.kind == "kept"], leaves, tensors)
        loss = next(t for r, t in made.items() if r.kind == "loss")
        return self._reported(captured.result, made, tensors, leaves), loss.item()

    @staticmethod
    def _reported(result: Any, made: Mapping[Role, Tensor], tensors: list[Tensor], leaves: list[Any]) -> Any:
        """What the loss function returned, with this run's tensors."""

        def tensor(leaf: Any) -> Any:
            if not isinstance(leaf, LossOutput):
                return leaf
            return made[leaf.role] if leaf.role in made else _input(leaf.role, tensors, leaves)

        return pytree.tree_map(tensor, result)

    def _bind(self, role: Role, tensors: list[Tensor], parameters: list[Tensor], leaves: list[Any]) -> ChipArray:
        if role.kind == "batch":
            return ChipArray(leaves[role.place], role.name)
        if role.kind == "rate":
            group, key, at = role.place
            held = self.optimizer.param_groups[group][key]
            return ChipArray(torch.tensor(float(held if at is None else held[at]), dtype=torch.float32), exact=True)
        if role.kind == "seed":
            return ChipArray(new_seed(role.place))
        if role.kind == "scale":
            return ChipArray(self._scale(role.name), exact=True)
        if role.kind == "count":
            count = float(self.optimizer.state[parameters[role.place[0]]]["step"])
            return ChipArray(torch.tensor(count), exact=True)
        if role.kind == "state":
            tensor = self.optimizer.state[parameters[role.place[0]]][role.place[1]]
        elif role.kind == "outside":
            assert self.captured is not None
            tensor = self.captured.dependencies.places[role.place].now()
        else:
            tensor = tensors[role.place]
        tensor = sharded.local(tensor)
        known = self._buffers.get(role)
        if known is None or not known.still(tensor):
            known = self._buffers[role] = ChipArray(tensor, role.name)
        return known

    def _scale(self, name: str) -> Tensor:
        """The history behind a scale; those of the same name go on in another program of the step."""
        assert self.captured is not None
        graph = self.captured.graph
        shape = next(v.shape for v in graph.inputs if v.name == name)
        return self._scales.setdefault((name, shape), torch.zeros(shape))

    def _store_count(self, parameters: list[Tensor], role: Role, value: Any) -> None:
        for i in role.place:
            state = self.optimizer.state[parameters[i]]
            if isinstance(state["step"], Tensor):
                as_host(state["step"]).fill_(float(value))
            else:
                state["step"] = type(state["step"])(value)


def _input(role: Role, tensors: list[Tensor], leaves: list[Any]) -> Tensor:
    tensor: Tensor = leaves[role.place] if role.kind == "batch" else tensors[role.place]
    return tensor


def _differs(before: Mapping[str, Hashable], now: Mapping[str, Hashable]) -> str | None:
    """The first setting that is another, for people."""
    if before == now:
        return None
    name = next(k for k in (*now, *before) if before.get(k) != now.get(k))
    return f"{name} was {_setting(before.get(name))}, is {_setting(now.get(name))}"


def _setting(value: Hashable) -> str:
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], str):
        return value[1]
    if isinstance(value, tuple) and len(value) in (5, 6) and isinstance(value[1], torch.dtype):
        shape, dtype, device, learns, strides, *placed = value
        text = f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}, requires_grad={learns}"
        text = text if strides is None else f"{text}, strides {strides}"
        return f"{text}, {placed[0][1]} on ranks {placed[0][0].mesh.tolist()}" if placed else text
    text = "absent" if value is None else str(value)
    return text if len(text) <= 100 else text[:97] + "..."


def _batch_form(leaves: Sequence[Any]) -> tuple[Hashable, ...]:
    """Forms of the tensors, plain values, kinds of all else (which is compared later), and which are the same."""
    first: dict[int, int] = {}
    same = tuple(first.setdefault(id(x), i) for i, x in enumerate(leaves) if isinstance(x, Tensor))
    return *map(_leaf_form, leaves), same


def _leaf_form(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        if leaf.grad_fn is not None and leaf.requires_grad:
            raise UsageError(
                "a tensor of the batch was computed from others and requires a gradient",
                code="TRN142",
                remedy="compute it inside of the step, or hand it over as x.detach()",
            )
        return form(leaf)
    plain = isinstance(leaf, (int, float, complex, str, bytes, type(None)))
    return exactly(leaf) if plain else type(leaf).__qualname__


def _strided(tensor: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The same values in the strides that they have in eager mode."""
    if tensor.stride() == strides or 0 in strides:
        return tensor
    host = as_host(tensor)
    return as_neuron(torch.empty_strided(host.shape, strides, dtype=host.dtype).copy_(host))


def learned_from(leaves: list[Any]) -> Counted:
    """How many tokens, or else samples, are in the batch: see `counted`."""
    return counted([(x.shape, str(x.dtype)) for x in leaves if isinstance(x, Tensor)], samples=0)

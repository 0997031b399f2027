# SPDX-License-Identifier: Apache-2.0
"""A training step that runs on the simulated chip as one program.

    step = compile_step(model, optimizer, lambda model, x, y: F.cross_entropy(model(x), y))
    for x, y in batches:
        loss = step(x, y)

The step updates parameters, buffers and the optimizer's state in place: they keep their identity, so checkpoints,
learning rate schedules and evaluation in eager mode work as ever. Gradients live only inside the step; `.grad` is
left alone.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from trnlab.errors import UsageError
from trnlab.frontends.torch import engine
from trnlab.frontends.torch.buffers import Buffer, tensor_from
from trnlab.frontends.torch.capture import Captured, LossFunction, Role, Subject, capture_step, prepare
from trnlab.frontends.torch.dlpack import as_host

_NOT_CONSTANT = ("params", "lr", "initial_lr")


def compile_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_fn: LossFunction | None = None,
    *,
    max_norm: float | None = None,
    name: str = "train_step",
) -> TrainStep:
    """A step of `optimizer` on the loss that `loss_fn(model, *batch)` returns, gradients clipped to `max_norm`.

    Without a loss function the model returns the loss. Programs are compiled on first use, one per form of the batch.
    """
    return TrainStep(model, optimizer, loss_fn, max_norm, name)


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
        self.captured: Captured | None = None
        self._programs: dict[Hashable, tuple[Captured, engine.Program]] = {}
        self._buffers: dict[Any, Buffer] = {}

    def __call__(self, *batch: Any) -> Any:
        """Train on one batch; returns the loss, or (loss, ...) when the loss function returns more tensors."""
        eager = getattr(engine.current(), "train_step", None)
        if eager is not None:  # an engine that takes whole steps
            return eager(self, batch)
        prepare(self.optimizer)
        subject = Subject(self.model, self.optimizer)
        _check_devices(subject)
        leaves, spec = pytree.tree_flatten(batch)
        counts = subject.counts()
        key = (
            str(spec),
            *map(_form, leaves),
            self._settings(),
            tuple(counts),
            tuple(_form(t) for *_, t in subject.tensors),
        )
        if key not in self._programs:
            captured = capture_step(
                self.model, self.optimizer, self.loss_fn, batch, max_norm=self.max_norm, name=self.name
            )
            self._programs[key] = captured, engine.current().compile(captured.graph)
        self.captured, program = self._programs[key]
        self.optimizer._opt_called = True  # what learning rate schedulers look at, to warn about a step forgotten
        reported = self._run(self.captured, program, subject, leaves)
        loss = reported[0] if isinstance(reported, tuple) else reported
        engine.current().step_done(loss.item(), _learned_from(leaves))
        return reported

    def _settings(self) -> Hashable:
        # -- running ------------------------------------------------------------------------------------------
        groups = tuple(
            (*((k, str(v)) for k, v in g.items() if k not in _NOT_CONSTANT), *(id(p) for p in g["params"]))
            for g in self.optimizer.param_groups
        )
        state = tuple(
            tuple(self.optimizer.state.get(p, ())) for g in self.optimizer.param_groups for p in g["params"]
        )
        return tuple(m.training for m in self.model.modules()), groups, state

    # -- running
    # ------------------------------------------------------------------------------------------------------
    def _run(self, captured: Captured, program: engine.Program, subject: Subject, leaves: list[Any]) -> Any:
        tensors = [t for *_, t in subject.tensors]
        parameters = list(subject.parameters.values())
        bound = [self._bind(role, tensors, parameters, leaves) for role in captured.inputs]
        arrays = [b.array() for b in bound]
        results = program(arrays)
        for i, j in captured.graph.aliases.items():
            bound[j].store(results[i])
        reported = []
        for i, role in enumerate(captured.outputs):
            if role.kind == "count":
                self._store_count(parameters, role, results[i])
            elif i not in captured.graph.aliases:
                tensor = tensor_from(results[i], captured.kinds[i])
                if role.kind == "state":
                    self.optimizer.state[parameters[role.place[0]]][role.place[1]] = tensor
                else:
                    reported.append(tensor)
        return reported[0] if len(reported) == 1 else tuple(reported)

    def _bind(self, role: Role, tensors: list[Tensor], parameters: list[Tensor], leaves: list[Any]) -> Buffer:
        if role.kind == "batch":
            return Buffer(leaves[role.place])
        if role.kind == "rate":
            return Buffer(torch.tensor(float(self.optimizer.param_groups[role.place]["lr"]), dtype=torch.float32))
        if role.kind == "seed":
            return Buffer(new_seed())
        if role.kind == "count":
            return Buffer(torch.tensor(float(self.optimizer.state[parameters[role.place[0]]]["step"])))
        if role.kind == "state":
            tensor = self.optimizer.state[parameters[role.place[0]]][role.place[1]]
        else:
            tensor = tensors[role.place]
        known = self._buffers.get(role)
        if known is None or not known.still(tensor):
            known = self._buffers[role] = Buffer(tensor)
        return known

    def _store_count(self, parameters: list[Tensor], role: Role, value: Any) -> None:
        for i in role.place:
            as_host(self.optimizer.state[parameters[i]]["step"]).fill_(float(value))


def _learned_from(leaves: list[Any]) -> int:
    """How many tokens (elements of the last tensor of integers), or else samples, are in the batch."""
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    ids = [x for x in tensors if not x.is_floating_point()]
    return ids[-1].numel() if ids else len(tensors[0]) if tensors and tensors[0].dim() else 0


def new_seed() -> Tensor:
    """A seed of 64 bits for one run of a program, from PyTorch's generator: `torch.manual_seed` decides."""
    return torch.randint(-(2**31), 2**31, (2,), dtype=torch.int64).to(torch.int32)


def _form(leaf: Any) -> Hashable:
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return tuple(leaf.shape), leaf.dtype, leaf.device.type, leaf.requires_grad


def _check_devices(subject: Subject) -> None:
    for kind, name, tensor in subject.tensors:
        if tensor.device.type != "neuron":
            raise UsageError(
                f"{kind} {name!r} is not on the device", code="TRN111", got=tensor.device,
                remedy='move the model with model.to("neuron") before the optimizer is made',
            )  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""Pipelines of `torch.distributed.pipelining` in a script that is followed without values.

Stages ask each other for the shapes of what they exchange before the first step. A rank that is followed alone is
told what the ranks said that were followed before it; where nobody has said it yet, its walk ends and is made again
later. Gradients have the shapes of what they are of. Stages and losses that the script leaves eager are compiled
here, each alone, as `torch.compile(backend="neuron")` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from trnlab.errors import UsageError
from trnlab.estimate.schedule import StagePass
from trnlab.fleet.search.pipeline import order
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.pytorch import tracing
from trnlab.graph.ir import Graph


@dataclass
class StageRuns:
    """The graphs that a stage's passes ran in a step, and how many passes there were."""

    graphs: Counter[Graph] = field(default_factory=Counter)
    passes: int = 0


@dataclass
class PipelineRanks:
    """The pipeline that a rank is part of."""

    schedule: str
    microbatches: int
    stages: int
    ranks: tuple[int, ...]  # of the world, by place
    orders: list[list[StagePass]]
    sends: dict[int, int] = field(default_factory=dict)  # by stage of this rank, bytes of what a microbatch hands on


class PipelineObserver(Protocol):
    """Who is told what the script does."""

    mail: dict[tuple[int, int], Any]
    divided: PipelineRanks | None
    compiled: bool

    def backward(self) -> None:
        """A step learns."""

    def in_pass(self, which: tuple[int, bool] | None) -> None:
        """Graphs from now on are of this stage and direction; of none."""

    def passes(self, stage: int, backward: bool) -> None:
        """A pass was made."""

    def unseen(self) -> Any:
        """A context in which graphs are of no step."""

    def waits(self) -> None:
        """The walk cannot go on before other ranks were followed. Does not return."""


@contextmanager
def pipelines_told(walk: PipelineObserver) -> Iterator[None]:
    """Within the block pipelines are told to the walk."""
    from torch.distributed.pipelining import PipelineStage, schedules

    from trnlab.frontends.torch.pytorch.stages import Schedule, Stage, agreeing_alone

    with ExitStack() as stack:
        for cls, name, method in (
            *agreeing_alone(),
            (PipelineStage, "_send_meta", _sender(walk)),
            (PipelineStage, "_recv_meta", _receiver(walk)),
            (Stage, "__init__", _compiled_stage(walk, Stage.__init__)),
            (Stage, "forward_one_chunk", _pass_of(walk, Stage.forward_one_chunk, False)),
            (Stage, "backward_one_chunk", _pass_of(walk, Stage.backward_one_chunk, True)),
            (Schedule, "__init__", _compiled_loss(walk, Schedule.__init__)),
            (Schedule, "_compute_loss", _loss(walk, Schedule._compute_loss)),
            (
                Schedule,
                "_initialize_pp_stages",
                _unseen(walk, Schedule._initialize_pp_stages),
            ),
            (schedules.PipelineScheduleSingle, "step", _step(walk, schedules.PipelineScheduleSingle.step)),
            (schedules.PipelineScheduleMulti, "step", _step(walk, schedules.PipelineScheduleMulti.step)),
        ):
            stack.enter_context(patch.object(cls, name, method))
        yield


# -- what stages ask each other -------------------------------------------------------------------------------------


def _sender(walk: PipelineObserver) -> Callable[..., None]:
    def send(stage: Any, meta: Any, target: int) -> None:
        walk.mail[stage.stage_index, target] = meta

    return send


def _receiver(walk: PipelineObserver) -> Callable[..., Any]:
    def receive(stage: Any, source: int) -> Any:
        from trnlab.frontends.torch.pytorch.stages import shapes_of_gradients

        if source > stage.stage_index:
            return shapes_of_gradients(stage._stage_meta.outputs)
        if (source, stage.stage_index) not in walk.mail:
            walk.waits()
        return walk.mail[source, stage.stage_index]

    return receive


# -- what they run --------------------------------------------------------------------------------------------------


def _compiled_stage(walk: PipelineObserver, original: Any) -> Callable[..., None]:
    def begin(stage: Any, submodule: nn.Module, *args: Any, **kwargs: Any) -> None:
        if not _is_compiled(submodule):
            # `Module.compile` leaves modules of PyTorch's own, as `Sequential`, eager: Dynamo skips their frames
            called = tracing.traced_inline(submodule._call_impl)
            submodule._compiled_call_impl = torch.compile(called, backend="neuron")
            walk.compiled = True
        original(stage, submodule, *args, **kwargs)

    return begin


def _compiled_loss(walk: PipelineObserver, original: Any) -> Callable[..., None]:
    def begin(schedule: Any, n_microbatches: int, loss_fn: Any = None, *args: Any, **kwargs: Any) -> None:
        is_compiled = _is_compiled(loss_fn) or hasattr(loss_fn, "_torchdynamo_orig_callable")
        if loss_fn is not None and not is_compiled:
            loss_fn = torch.compile(loss_fn, backend="neuron")
        original(schedule, n_microbatches, loss_fn, *args, **kwargs)

    return begin


def _is_compiled(module: Any) -> bool:
    modules = list(module.modules()) if isinstance(module, nn.Module) else []
    kind = tracing.OptimizedModule
    return any(isinstance(m, kind) or getattr(m, "_compiled_call_impl", None) is not None for m in modules)


def _pass_of(walk: PipelineObserver, original: Any, backward: bool) -> Callable[..., Any]:
    def run(stage: Any, *args: Any, **kwargs: Any) -> Any:
        walk.in_pass((stage.stage_index, backward))
        try:
            return original(stage, *args, **kwargs)
        finally:
            walk.in_pass(None)
            walk.passes(stage.stage_index, backward)

    return run


def _loss(walk: PipelineObserver, original: Any) -> Callable[..., Any]:
    def run(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        walk.in_pass((_stages(schedule)[0].num_stages - 1, False))
        try:
            return original(schedule, *args, **kwargs)
        finally:
            walk.in_pass(None)

    return run


def _unseen(walk: PipelineObserver, original: Any) -> Callable[..., Any]:
    def run(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        with walk.unseen():
            return original(schedule, *args, **kwargs)

    return run


def _step(walk: PipelineObserver, original: Any) -> Callable[..., Any]:
    def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
        if walk.divided is None:
            walk.divided = _divided(schedule)
        walk.backward()
        with recording.using("operators"):  # its passes are timed as compiled ones, and not a second time
            found = original(schedule, *args, **kwargs)
        for each in _stages(schedule):
            outputs = each._stage_meta.outputs or ()
            walk.divided.sends[each.stage_index] = sum(m.shape.numel() * m.dtype.itemsize for m in outputs)
        return found

    return step


# -- what they are --------------------------------------------------------------------------------------------------


def _stages(schedule: Any) -> list[Any]:
    return [schedule._stage] if hasattr(schedule, "_stage") else list(schedule._stages)


def _divided(schedule: Any) -> PipelineRanks:
    """The pipeline of a schedule. Raises UsageError (TRN198) for one whose passes are not whole."""
    first, name = _stages(schedule)[0], type(schedule).__name__
    count, microbatches = first.num_stages, schedule._n_microbatches
    single = {"ScheduleGPipe": _all_forward_first, "Schedule1F1B": _one_by_one}.get(name)
    orders = single(count, microbatches) if single is not None else _told(schedule)
    if orders is None:
        raise UsageError(
            f"{name} divides the way back into parts, and programs of stages have it whole",
            code="TRN198",
            got=name,
            limit="ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleLoopedBFS",
            remedy="estimate with one of these; `trnlab run` takes the others",
        )
    ranks = tuple(dist.get_process_group_ranks(first.group if first.group is not None else dist.group.WORLD))
    return PipelineRanks(name.removeprefix("Schedule"), microbatches, count, ranks, orders)


def _all_forward_first(ranks: int, microbatches: int) -> list[list[StagePass]]:
    ways = [(backward, i) for backward in (False, True) for i in range(microbatches)]
    return [[StagePass(backward, rank, i) for backward, i in ways] for rank in range(ranks)]


def _one_by_one(ranks: int, microbatches: int) -> list[list[StagePass]]:
    """What `Schedule1F1B` does; what it says it does (`_get_pipeline_order`) has microbatches that do not exist."""
    return [
        [StagePass(w.backward, rank, w.microbatch) for w in order(rank, ranks, microbatches)] for rank in range(ranks)
    ]


def _told(schedule: Any) -> list[list[StagePass]] | None:
    """What a schedule of several stages a rank says of all ranks; None where passes are not whole."""
    told = getattr(schedule, "pipeline_order", None) or {}
    actions = {rank: [a for a in found if a is not None] for rank, found in told.items()}
    kinds = {a.computation_type.value for found in actions.values() for a in found}
    if not told or kinds & {"I", "W", "OVERLAP_F_B"}:
        return None
    return [
        [
            StagePass(a.computation_type.value == "B", a.stage_index, a.microbatch_index)
            for a in actions[rank]
            if a.computation_type.value in ("F", "B")
        ]
        for rank in sorted(actions)
    ]

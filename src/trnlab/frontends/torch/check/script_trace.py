# SPDX-License-Identifier: Apache-2.0
"""A script is followed to the end of its first steps, without values; what it did is kept for the report."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from trnlab.errors import Location
from trnlab.findings import WARNING
from trnlab.frontends import unedited
from trnlab.frontends.common.engine import Counted, use
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.capture.step_capture import CapturedStep
from trnlab.frontends.torch.check import ranks
from trnlab.frontends.torch.check.captured_output import silent
from trnlab.frontends.torch.check.dynamo import listening
from trnlab.frontends.torch.check.engine import TraceEngine
from trnlab.frontends.torch.check.live_objects import alive, only_new_ones
from trnlab.frontends.torch.check.pipelines import PipelineRanks, StageRuns, pipelines_told
from trnlab.frontends.torch.check.recorded import room_of
from trnlab.frontends.torch.check.running import StopTracing, run
from trnlab.frontends.torch.check.savers import saved_with_holes
from trnlab.frontends.torch.check.steps import TracedStep
from trnlab.frontends.torch.check.traced_recordings import TracedRecordings
from trnlab.frontends.torch.check.unmaterialized import Unwritten, memory_of
from trnlab.frontends.torch.check.values import forget_masks
from trnlab.frontends.torch.findings.assumed import COUNTED, EVERY, ON_HOST, note_values
from trnlab.frontends.torch.findings.locations import here, models_kept, parse
from trnlab.frontends.torch.findings.survey import Survey, surveyed
from trnlab.frontends.torch.recording import barriers
from trnlab.frontends.torch.step import learned_from
from trnlab.graph.ir import Graph
from trnlab.runtime.communication import UntimedCollective
from trnlab.runtime.script import Script
from trnlab.runtime.session import Session, activate, current

STEPS, SECONDS = 6, 10.0  # a walk goes on for so many steps, and so long after the first, to see what changes


_SEED_OF_GRADIENTS = "aten::ones_like"  # what every `loss.backward()` begins with


class ScriptTrace(TracedRecordings):
    """What a walk met. `steps`: those of training; `kept`: tensors that stay on the device between steps, by kind."""

    def __init__(self, survey: Survey, mail: dict[tuple[int, int], Any] | None = None) -> None:
        super().__init__(survey)
        self.mail = mail if mail is not None else {}  # what stages of a pipeline said to each other
        self.divided: PipelineRanks | None = None
        self.compiled = self.early = False  # stages that the script leaves eager; whether other ranks come first
        self._pass: tuple[int, bool] | None = None
        kinds = ("parameter", "gradient", "state", "buffer")
        self.kept: dict[str, dict[int, tuple[str, Tensor]]] = {kind: {} for kind in kinds}
        self.all_batches = 0  # of all ranks in a step, as far as the script's parts say
        self._pending = False
        self._first: float | None = None
        self._shapes: list[tuple[str, ...]] = []
        self._again: Counter[str] = Counter()
        self._depth = 0
        self.complete = True
        self._trial = False
        self.made_up: dict[Location | None, Any] = {}  # numbers that Python was given, by who asked last
        self._learned: dict[
            int, tuple[int, Tensor]
        ] = {}  # tensors with gradients, and their memory then, by identity
        self._others = _with_gradients()  # of whoever was here before the script
        self._known_count = True
        self._begun = False  # whether what is exchanged is part of a step, and not of what comes before the first

    # -- what the script does -------------------------------------------------------------------------------------
    def on_host(self, name: str) -> None:
        """An operator computes on the device, outside of any program."""
        if self._depth == 0 and name != _SEED_OF_GRADIENTS:
            self._by_host(self.now, name, parse(here(sys._getframe(2)) or ""))

    def by_values(self, op: Any, args: Any) -> None:
        """An operator outside of programs has a shape that depends on values; its gradient says nothing new."""
        if not self._backward:
            note_values(self.survey, op, parse(here(sys._getframe(2)) or ""), ON_HOST)

    def counted(self, op: Any, known: bool | None) -> None:
        """The chip counts what a mask chooses, and the script waits for the count. known: None for one that it has
        just waited for."""
        self._known_count = self._known_count if known is None else known
        if not self._backward:
            how = COUNTED if self._known_count else f"{COUNTED}; {EVERY}"
            note_values(self.survey, op, parse(here(sys._getframe(2)) or ""), how)

    def read(self, number: Any) -> None:
        """Python was given a number that nobody computed."""
        place = parse(here(sys._getframe(2)) or "")
        self.made_up.pop(place, None)
        self.made_up[place] = number

    def executed(self, graph: Graph, inputs: Mapping[str, Any]) -> None:
        """A graph of `torch.compile` ran."""
        if self._hidden:
            return
        self._begins()
        if self._pass is not None:
            self.now.passes.setdefault(self._pass, StageRuns()).graphs[graph] += 1
        if graph.name.startswith("forward") and self._pending:
            self._over()
        self.now.graphs.append(graph)
        if not self.steps:
            self.recordings.sequence.append(graph)
        self.now.seen += inputs.values()
        for name, x in inputs.items():
            if isinstance(x, nn.Parameter):
                self.kept["parameter"].setdefault(id(x), (name, x))
        if self._learning and graph.aliases and graph.name.startswith("graph"):
            self._pending = True
            seen = set(map(id, self.now.seen))
            for optimizer in _optimizers():
                if any(id(p) in seen for group in optimizer.param_groups for p in group["params"]):
                    self._keep(optimizer)
        if graph.name.startswith("forward") or not self._learning:
            self._count(inputs.values())
        kinds = {id(t): kind for kind, named in self.kept.items() for _, t in named.values() if not t.is_meta}
        kinds |= {id(p.grad): "gradient" for _, p in self.kept["parameter"].values() if p.grad is not None}
        self.now.kinds[graph] = {name: kinds[id(x)] for name, x in inputs.items() if id(x) in kinds}

    def of_another(
        self, how: str, graphs: Sequence[Graph], kinds: Mapping[str, str], learns: bool, counted: Counted = (0, "")
    ) -> None:
        """Graphs of another framework than PyTorch ran; see `TracingEngine`."""
        self._begins()
        self.now.graphs += graphs
        self.now.how, self.now.learns = how, self.now.learns or learns
        self.now.kinds.update((graph, dict(kinds)) for graph in graphs)
        if not learns and not self.now.per_step:
            self.now.per_step, self.now.counted = counted
        elif learns:
            self.now.counted = counted[1]  # what `step_done` says the number of

    def _count(self, inputs: Iterable[Any]) -> None:
        batch = [x for x in inputs if isinstance(x, Tensor) and not isinstance(x, nn.Parameter) and x.dim()]
        if batch and not self.now.per_step:
            self.now.per_step, self.now.counted = learned_from(batch)

    def captured(self, step: CapturedStep) -> None:
        """A step of `compile_step` ran."""
        self.now.graphs, self.now.captured = [step.graph], step

    def again(self, reason: str | None, shapes: tuple[str, ...], where: Any) -> None:
        """A step was captured again: for what reason, or because of the shapes of the batch."""
        if reason is None:
            self._other_batch(shapes, where)
            return
        subject = reason.split(" was ")[0]
        found = self.survey.note(
            "TRN253",
            "the step is captured and compiled again: something that it read has changed",
            where,
            why=reason,
            do="keep what changes in a tensor, or compute it outside of the step",
            severity=WARNING,
            subject=subject,
            whatever=True,
        )
        self._again[subject] += 1
        if self._again[subject] == 2:
            found.why += "; it goes on changing, and each time takes another compilation"

    def _other_batch(self, shapes: tuple[str, ...], where: Any) -> None:
        if self.loaders.gave_its_last(shapes):
            return  # which is told by itself
        known = sorted({", ".join(s) for s in self.batches} - {", ".join(shapes)})
        self.survey.note(
            "TRN252",
            "the step is captured and compiled again: the batch comes in another shape",
            where,
            why=f"{', '.join(shapes)} after {known[0] if known else 'another'}",
            severity=WARNING,
            do="give batches one shape: pad them to a few fixed lengths (trnlab.buckets proposes them), and "
            "drop_last=True",
            subject="batch",
            whatever=True,
        )

    @property
    def batches(self) -> list[tuple[str, ...]]:
        """Shapes of the batches of captured steps so far."""
        return self._shapes

    def begun(self, shapes: tuple[str, ...]) -> None:
        """A step of `compile_step` begins with a batch of these shapes."""
        self._shapes.append(shapes)
        self._begins()

    def _begins(self) -> None:
        """The first step has begun: what was exchanged before is done once."""
        if not self._begun:
            ranks.asked()
            self._begun = True

    # -- where steps end ------------------------------------------------------------------------------------------
    def step_done(self, per_step: int, counted: str) -> None:
        """The script, or its compiled step, says that a step is over."""
        if per_step:
            self.now.per_step, self.now.counted = per_step, (self.now.how and self.now.counted) or counted or "tokens"
        self._over()

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer made its step."""
        if self._depth == 0 and self._learning:
            self._keep(optimizer)
            if self._trial or not barriers.ends():
                self._over()
                return
            self._ending, self.now = self._closed(), TracedStep()

    def _keep(self, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                if p.device.type != "neuron":
                    continue
                self.kept["parameter"][id(p)] = (f"param_groups[{g}][{i}]", p)
                if p.grad is not None:
                    self.kept["gradient"][id(p)] = (f"gradient of param_groups[{g}][{i}]", _form_of(p.grad))
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and value.device.type == "neuron":
                        self.kept["state"][id(value)] = (f"{key} of param_groups[{g}][{i}]", value)

    def backward(self) -> None:
        """`loss.backward()` is called."""
        if self._pending or self._exchanged():
            self._over(computes=self._waits)
        self._learning = self._begun = self.now.learns = True
        self.recordings.backward()

    # -- scripts that change their parameters by themselves -------------------------------------------------------
    def learned(self) -> None:
        """`loss.backward()` is over: these are the tensors that it learns for."""
        others = set(map(id, self._others))
        self._learned = {id(t): (memory_of(t), t) for t in _with_gradients() if id(t) not in others}

    def wrote(self, tensors: Sequence[Tensor]) -> None:
        """An operator writes to tensors. After a backward pass, to parameters, that is what ends a step; an optimizer
        that does it says so by itself."""
        if self._learning and not self._pending and not self._backward and self._depth == 0:
            known = {memory for memory, _ in self._learned.values()}
            if any(memory_of(t) in known for t in tensors):
                self._changes()

    def _exchanged(self) -> bool:
        """Whether parameters were given other memory since the last backward pass, as by `p.data = p.data - ...`."""
        found = self._learning and any(memory_of(t) != memory for memory, t in self._learned.values())
        if found:
            self._changes()
        return found

    def _changes(self) -> None:
        self._pending = self._waits = True
        for i, (_, p) in enumerate(self._learned.values()):
            self.kept["parameter"].setdefault(id(p), (f"parameter {i}", p))
            if p.grad is not None:
                self.kept["gradient"][id(p)] = (f"gradient of parameter {i}", _form_of(p.grad))

    # -- pipelines ------------------------------------------------------------------------------------------------
    def in_pass(self, which: tuple[int, bool] | None) -> None:
        """See `pipelines.PipelineObserver`, as the next three."""
        self._pass = which

    def passes(self, stage: int, backward: bool) -> None:
        """A pass of a stage was made."""
        self.now.passes.setdefault((stage, backward), StageRuns()).passes += 1

    @contextmanager
    def unseen(self) -> Iterator[None]:
        """Within the block graphs and operators are of no step."""
        self._hidden = True
        try:
            with self.aside():
                yield
        finally:
            self._hidden = False
            ranks.asked()

    def waits(self) -> None:
        """Other ranks have to be followed first."""
        self.early = True
        raise StopTracing

    def _over(self, computes: bool = True) -> None:
        """computes: what was recorded is of this step, not of the next."""
        if computes:
            recording.flush()
        if self._trial:
            self._learning = self._pending = False
            return
        step, self.now = self._closed(), TracedStep()
        self._done(step)

    def _closed(self) -> TracedStep:
        """The step that is over."""
        self.loaders.in_step()
        self.now.seen.clear()
        self.now.exchanged += ranks.asked()
        self.now.read = self.loaders.taken()
        self._learning, self._pending, self._learned = False, False, {}
        return self.now

    def _done(self, step: TracedStep) -> None:
        """All programs of a step have run."""
        self._tell(step)
        self.steps.append(step)
        if current().communicator is not None and not self.all_batches:  # what says it may be gone at the end
            self.all_batches = ranks.batches()
        self._first = self._first or time.perf_counter()
        if len(self.steps) >= STEPS or time.perf_counter() - self._first > SECONDS:
            raise StopTracing

    def ended(self) -> None:
        """The script came to its end by itself."""
        recording.flush()
        if not self.steps and not self._learning and self.recordings.inputs:
            self._passed()
        elif self._pending or self._exchanged() or (self.now.graphs and not self.steps):
            self.now.read = self.loaders.taken()
            self._tell(self.now)
            self.steps.append(self.now)
        if len(self.steps) == 1:  # what follows the only step is of no other
            self.steps[0].exchanged += ranks.asked()

    def trial(self, run: Callable[[], Any]) -> list[Graph]:
        """The graphs that a step runs which the script only wants to have timed; it is no step of the walk."""
        recording.flush()
        kept, self.now, self._trial = self.now, TracedStep(), True
        kept.exchanged += ranks.asked()
        try:
            with surveyed(Survey()):
                run()
                recording.flush()
            return self.now.graphs
        finally:
            ranks.asked()
            self.now, self._trial = kept, False
            self._learning = self._pending = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within the block operators are not the script's own."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @property
    def typical(self) -> TracedStep | None:
        """The second step where there is one: the first has work that is done once."""
        return self.steps[min(1, len(self.steps) - 1)] if self.steps else None

    @property
    def asked(self) -> list[UntimedCollective]:
        """What a step exchanges outside of graphs: the third, since replicas agree on their buckets in the second."""
        return self.steps[min(2, len(self.steps) - 1)].exchanged if self.steps else []


def follow(script: Script, session: Session, mail: dict[tuple[int, int], Any] | None = None) -> ScriptTrace:
    """Run the script without values until it has made its first steps. mail: what the stages of a pipeline said on
    ranks that were followed before. Raises UsageError where it made none and ran no program."""
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(only_new_ones())
        walk = ScriptTrace(Survey(), mail)
        enter(activate(session))
        engine = TraceEngine(walk)
        enter(use(engine))
        enter(barriers.following(room_of))
        stack.callback(forget_masks)
        enter(models_kept())
        enter(surveyed(walk.survey))
        enter(listening())
        enter(walk.loaders.watching())
        enter(_watched(walk))
        if session.communicator is not None:
            enter(pipelines_told(walk))
        enter(saved_with_holes(walk.aside))
        enter(unedited.reaching_the_chip(session))
        said = enter(silent())
        enter(torch.autograd.set_multithreading_enabled(False))
        engine.unwritten = enter(
            Unwritten(
                walk.on_host,
                walk.by_values,
                walk.read,
                walk.wrote,
                walk.recordings.arrived,
                walk.recordings.computed,
            )
        )
        run(script, walk, said)
    torch.compiler.reset()
    return walk


@contextmanager
def _watched(walk: ScriptTrace) -> Iterator[None]:
    """Within the block steps of optimizers and `loss.backward()` are told to the walk."""
    hook = register_optimizer_step_post_hook(_stepped)
    _walks.append(walk)
    original: Any = Tensor.backward

    def backward(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
        walk.backward()
        walk._backward = True
        try:
            result = original(loss, *args, **kwargs)
        finally:
            walk._backward = False
        if walk._depth == 0:
            walk.learned()
        return result

    Tensor.backward = torch.compiler.disable(backward)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.backward = original  # type: ignore[method-assign]
        hook.remove()
        _walks.remove(walk)


def _optimizers() -> list[torch.optim.Optimizer]:
    """All that there are: a compiled step tells nobody whose it is."""
    return alive(torch.optim.Optimizer)


def _with_gradients() -> list[Tensor]:
    """Tensors of the device that somebody has computed gradients for."""
    leaves = [t for t in alive(Tensor) if t.requires_grad and t.is_leaf and t.grad is not None]
    return [t for t in leaves if t.device.type == "neuron"]


def _form_of(gradient: Tensor) -> Tensor:
    """Without its memory, which would be kept for us alone."""
    return torch.empty(gradient.shape, dtype=gradient.dtype, device="meta")


_walks: list[ScriptTrace] = []


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _walks[-1].updated(optimizer)

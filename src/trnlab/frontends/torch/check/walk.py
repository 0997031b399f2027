# SPDX-License-Identifier: Apache-2.0
"""A script is followed to the end of its first steps, without values; what it did is kept for the report."""

from __future__ import annotations

import math
import runpy
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from trnlab.errors import Location, TrnlabError, UsageError
from trnlab.frontends import unedited
from trnlab.frontends.common.engine import use
from trnlab.frontends.torch.assumed import note_values
from trnlab.frontends.torch.capture import CapturedStep
from trnlab.frontends.torch.check import ranks
from trnlab.frontends.torch.check.alive import alive, only_new_ones
from trnlab.frontends.torch.check.dynamo import listening
from trnlab.frontends.torch.check.loaders import Loaders
from trnlab.frontends.torch.check.pipelines import Divided, Ran, pipelines_told
from trnlab.frontends.torch.check.savers import saved_with_holes
from trnlab.frontends.torch.check.shapes import Followed
from trnlab.frontends.torch.check.silence import Last, silent
from trnlab.frontends.torch.check.unwritten import Unwritten, memory_of, values_kept
from trnlab.frontends.torch.data import Loader
from trnlab.frontends.torch.locations import here, parse
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.survey import Survey, surveyed
from trnlab.graph.ir import Graph
from trnlab.porting.job import RANKS_WANTED
from trnlab.porting.result import WARNING
from trnlab.runtime import device
from trnlab.runtime.communication import Asked
from trnlab.runtime.script import Script, failure
from trnlab.runtime.session import Session, activate, current
from trnlab.units import PS_PER_S

STEPS, SECONDS = 6, 10.0  # a walk goes on for so many steps, and so long after the first, to see what changes


_SEED_OF_GRADIENTS = "aten::ones_like"  # what every `loss.backward()` begins with


class Enough(BaseException):
    """The walk has seen enough."""


@dataclass
class Step:
    """What one training step ran: graphs in order, and operators on the host."""

    graphs: list[Graph] = field(default_factory=list)
    kinds: dict[Graph, dict[str, str]] = field(default_factory=dict)  # of inputs that stay on the device
    seen: list[Any] = field(default_factory=list)  # inputs of its graphs, while it goes on
    captured: CapturedStep | None = None
    host: Counter[str] = field(default_factory=Counter)
    host_places: Counter[Location] = field(default_factory=Counter)
    asked: list[Asked] = field(default_factory=list)  # exchanged with other ranks outside of graphs
    passes: dict[tuple[int, bool], Ran] = field(default_factory=dict)  # of a pipeline, by stage and direction
    per_step: int = 0
    counted: str = ""
    read: Counter[Loader] = field(default_factory=Counter)  # batches of each data set
    learns: bool = False  # whether `loss.backward()` was called
    how: str = ""  # what of another framework compiled its graphs


class Walked:
    """What a walk met. `steps`: those of training; `kept`: tensors that stay on the device between steps, by kind."""

    def __init__(self, survey: Survey, mail: dict[tuple[int, int], Any] | None = None) -> None:
        self.survey, self.steps, self.now = survey, list[Step](), Step()
        self.mail = mail if mail is not None else {}  # what stages of a pipeline said to each other
        self.divided: Divided | None = None
        self.compiled = self.early = False  # stages that the script leaves eager; whether other ranks come first
        self._pass: tuple[int, bool] | None = None
        self._hidden = False
        self.kept: dict[str, dict[int, tuple[str, Tensor]]] = {"parameter": {}, "gradient": {}, "state": {}}
        self.loaders = Loaders()
        self._learning = self._pending = False
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
        self._backward = False  # whether gradients are being computed
        self._begun = False  # whether what is exchanged is part of a step, and not of what comes before the first

    # -- what the script does -------------------------------------------------------------------------------------
    def on_host(self, name: str) -> None:
        """An operator computes on the device, outside of any program."""
        if self._depth == 0 and name != _SEED_OF_GRADIENTS:
            self.now.host[name] += 1
            place = parse(here(sys._getframe(2)) or "")
            if place is not None:
                self.now.host_places[place] += 1

    def by_values(self, op: Any, args: Any) -> None:
        """An operator outside of programs has a shape that depends on values; its gradient says nothing new."""
        if not self._backward:
            note_values(self.survey, op, parse(here(sys._getframe(2)) or ""), eager=True)

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
            self.now.passes.setdefault(self._pass, Ran()).graphs[graph] += 1
        if graph.name.startswith("forward") and self._pending:
            self._over()
        self.now.graphs.append(graph)
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
        kinds = {id(t): kind for kind, named in self.kept.items() for _, t in named.values()}
        self.now.kinds[graph] = {name: kinds[id(x)] for name, x in inputs.items() if id(x) in kinds}

    def of_another(self, how: str, graphs: Sequence[Graph], kinds: Mapping[str, str], learns: bool) -> None:
        """Graphs of another framework than PyTorch ran; see `Follower`."""
        self._begins()
        self.now.graphs += graphs
        self.now.how, self.now.learns = how, self.now.learns or learns
        self.now.kinds.update((graph, dict(kinds)) for graph in graphs)

    def _count(self, inputs: Iterable[Any]) -> None:
        batch = [x for x in inputs if isinstance(x, Tensor) and not isinstance(x, nn.Parameter) and x.dim()]
        ids = [x for x in batch if not x.is_floating_point()]
        if ids and not self.now.per_step:
            self.now.per_step, self.now.counted = ids[-1].numel(), "tokens" if ids[-1].dim() > 1 else "samples"
        elif batch and not self.now.per_step:
            self.now.per_step, self.now.counted = len(batch[0]), "samples"

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
            "TRN253", "the step is captured and compiled again: something that it read has changed", where,
            why=reason, do="keep what changes in a tensor, or compute it outside of the step", severity=WARNING,
            subject=subject, whatever=True,
        )  # fmt: skip
        self._again[subject] += 1
        if self._again[subject] == 2:
            found.why += "; it goes on changing, and each time takes another compilation"

    def _other_batch(self, shapes: tuple[str, ...], where: Any) -> None:
        if self.loaders.gave_its_last(shapes):
            return  # which is told by itself
        known = sorted({", ".join(s) for s in self.batches} - {", ".join(shapes)})
        self.survey.note(
            "TRN252", "the step is captured and compiled again: the batch comes in another shape", where,
            why=f"{', '.join(shapes)} after {known[0] if known else 'another'}", severity=WARNING,
            do="give batches one shape: pad them to a few fixed lengths (trnlab.buckets proposes them), and "
            "drop_last=True", subject="batch", whatever=True,
        )  # fmt: skip

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
            self.now.per_step, self.now.counted = per_step, counted or "tokens"
        self._over()

    def updated(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer made its step."""
        if self._depth == 0 and self._learning:
            self._keep(optimizer)
            self._over()

    def _keep(self, optimizer: torch.optim.Optimizer) -> None:
        for g, group in enumerate(optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                if p.device.type != "neuron":
                    continue
                self.kept["parameter"][id(p)] = (f"param_groups[{g}][{i}]", p)
                if p.grad is not None:
                    self.kept["gradient"][id(p)] = (f"gradient of param_groups[{g}][{i}]", p.grad)
                for key, value in optimizer.state.get(p, {}).items():
                    if isinstance(value, Tensor) and value.device.type == "neuron":
                        self.kept["state"][id(value)] = (f"{key} of param_groups[{g}][{i}]", value)

    def backward(self) -> None:
        """`loss.backward()` is called."""
        if self._pending or self._exchanged():
            self._over()
        self._learning = self._begun = self.now.learns = True

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
        self._pending = True
        for i, (_, p) in enumerate(self._learned.values()):
            self.kept["parameter"].setdefault(id(p), (f"parameter {i}", p))
            if p.grad is not None:
                self.kept["gradient"][id(p)] = (f"gradient of parameter {i}", p.grad)

    # -- pipelines ------------------------------------------------------------------------------------------------
    def in_pass(self, which: tuple[int, bool] | None) -> None:
        """See `pipelines.Walk`, as the next three."""
        self._pass = which

    def passes(self, stage: int, backward: bool) -> None:
        """A pass of a stage was made."""
        self.now.passes.setdefault((stage, backward), Ran()).passes += 1

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
        raise Enough

    def _over(self) -> None:
        if self._trial:
            self._learning = self._pending = False
            return
        self.loaders.in_step()
        self.now.seen.clear()
        self.now.asked += ranks.asked()
        self.now.read = self.loaders.taken()
        self.steps.append(self.now)
        self.now, self._learning, self._pending, self._learned = Step(), False, False, {}
        self._first = self._first or time.perf_counter()
        if len(self.steps) >= STEPS or time.perf_counter() - self._first > SECONDS:
            raise Enough

    def ended(self) -> None:
        """The script came to its end by itself."""
        if self._pending or self._exchanged() or (self.now.graphs and not self.steps):
            self.now.read = self.loaders.taken()
            self.steps.append(self.now)
        if len(self.steps) == 1:  # what follows the only step is of no other
            self.steps[0].asked += ranks.asked()

    def trial(self, run: Callable[[], Any]) -> list[Graph]:
        """The graphs that a step runs which the script only wants to have timed; it is no step of the walk."""
        kept, self.now, self._trial = self.now, Step(), True
        kept.asked += ranks.asked()
        try:
            with surveyed(Survey()):
                run()
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
    def typical(self) -> Step | None:
        """The second step where there is one: the first has work that is done once."""
        return self.steps[min(1, len(self.steps) - 1)] if self.steps else None

    @property
    def asked(self) -> list[Asked]:
        """What a step exchanges outside of graphs: the third, since replicas agree on their buckets in the second."""
        return self.steps[min(2, len(self.steps) - 1)].asked if self.steps else []


class _Engine(Followed):
    def step_time(self, measured: Callable[[], float]) -> float:
        """The time of the graphs that the step runs, for the first target; infinite for what does not compile."""
        graphs = self.walk.trial(measured)  # type: ignore[attr-defined]
        now = current()
        with values_kept():
            try:
                return sum(device.obtain(g, now).outline.total for g in graphs) / PS_PER_S
            except TrnlabError:
                return math.inf

    def follow(self, how: str, graphs: Sequence[Graph], kinds: Mapping[str, str], learns: bool) -> None:
        """See `Follower`."""
        self.walk.of_another(how, graphs, kinds, learns)  # type: ignore[attr-defined]

    def left(self, name: str, error: TrnlabError) -> None:
        """See `Follower`."""
        self.walk.survey.note(  # type: ignore[attr-defined]
            error.code, error.what.splitlines()[0], error.where, why=f"{name!r} runs on the host because of that",
            do=error.remedy or "", severity=WARNING, subject=name,
        )  # fmt: skip

    def train_step(self, step: Any, batch: Sequence[Any]) -> Any:
        walk: Any = self.walk
        leaves = pytree.tree_leaves(batch)
        walk.begun(tuple(f"{str(x.dtype)[6:]}{list(x.shape)}" for x in leaves if isinstance(x, Tensor)))
        with walk.aside():
            return super().train_step(step, batch)


def follow(script: Script, session: Session, mail: dict[tuple[int, int], Any] | None = None) -> Walked:
    """Run the script without values until it has made its first steps. mail: what the stages of a pipeline said on
    ranks that were followed before. Raises UsageError where it made none and ran no program."""
    walk = Walked(Survey(), mail)
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(only_new_ones())
        enter(activate(session))
        enter(use(_Engine(walk)))
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
        enter(Unwritten(walk.on_host, walk.by_values, walk.read, walk.wrote))
        _run(script, walk, said)
    torch.compiler.reset()
    return walk


def _run(script: Script, walk: Walked, said: Last) -> None:
    path, argv = list(sys.path), sys.argv
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.file.parent))
    try:
        runpy.run_path(str(script.path), run_name="__main__")
        walk.ended()
    except Enough:
        pass
    except SystemExit as exit:
        walk.complete = exit.code in (None, 0)
        if not walk.complete:
            walk.survey.raised(_ended_early(exit, _line(exit, script), said.line))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        walk.complete = False
        place = _line(error, script)
        told = failure(error, "TRN259")
        if current().communicator is None and ranks.asks_for_ranks(error):
            told = ranks.alone(current())
        own = told.code == "TRN259"
        told.where = place or told.where if own or told.code == RANKS_WANTED else told.where or place
        told.what = told.what.strip().splitlines()[0] if own else told.what
        if own:
            told.got, told.remedy = _made_up(walk), _REMEDY_MADE_UP if walk.made_up else _REMEDY
        walk.survey.raised(told)
    finally:
        sys.argv, sys.path[:] = argv, path


def _ended_early(exit: SystemExit, where: Location | None, said: str) -> UsageError:
    """said: the last line that the script wrote to standard error; a message that it ends with is not written yet."""
    status = exit.code if isinstance(exit.code, int) else 1
    return UsageError(
        f"the script ended with exit status {status} before its first step", code="TRN259", where=where,
        got=(said if isinstance(exit.code, int) else str(exit.code)) or None,
        remedy="see what it says; what follows its name on the command line is the script's, so that options of "
        "trnlab stand before it",
    )  # fmt: skip


_REMEDY = "see the line: the script had been given no number that is made up here"
_REMEDY_MADE_UP = "check computes no values: let the line take any finite number; `trnlab run` computes them"


def _made_up(walk: Walked) -> str | None:
    """The numbers behind an error that Python was given though nobody computed them, latest first."""
    latest = [f"{number} at {place or 'an unknown line'}" for place, number in [*walk.made_up.items()][:-4:-1]]
    return f"numbers of tensors that are made up here: {'; '.join(latest)}" if latest else None


def _line(error: BaseException, script: Script) -> Location | None:
    """The line of the script at which an error arrived."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(script.path)]
    last = frames[-1] if frames else None
    return Location(last.filename, last.lineno or 0, last.name, last.line or "") if last is not None else None


@contextmanager
def _watched(walk: Walked) -> Iterator[None]:
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


_walks: list[Walked] = []


def _stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _walks[-1].updated(optimizer)

# SPDX-License-Identifier: Apache-2.0
"""The step of a rank as one program, where all blocks of a model are on it and its weights are divided among data
parallel ranks (ZeRO-3): what `trnlab estimate` finds for the script that trains so.

Units are those of PyTorch's `fully_shard` as scripts apply it: the embedding, each block, the head, and around them
all the norm that follows the last block, which is gathered once. A unit's weights are gathered before its forward
pass, rounded from parts in float32, and once more for its backward pass, after which the sum of its gradients is
divided. The update is of parts (`updates`). Steps of several microbatches are two programs: one that adds to
gradients, which runs so many times, and the update.

Steps of many blocks are lines in their number: all blocks but the first and the last ones do the same beside the same
neighbours. Llama-2-70B's 80 blocks in groups of 8 on 64 trn2.48xlarge take 8.8056 s compiled as such (341 s of
processor time), and as much to 1e-7 by a step of 4 and one of 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from trnlab.collectives import Groups
from trnlab.estimate.forecast import GraphRuns, StepWork, cost_of, memory_of_step
from trnlab.estimate.job import NullCommunicator
from trnlab.estimate.result import LargeTensor
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.costs.timed import TimedPrograms
from trnlab.fleet.costs.updates import OptimizerUpdate, part_of
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.training import TrainingLayers
from trnlab.fleet.models.transformer import Model
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph, Value
from trnlab.numerics.dtypes import float32
from trnlab.runtime.step_cost import UPDATE, StepPrograms
from trnlab.units import PS_PER_S

Shape = tuple[int, ...]
CLASSES = {  # of the bytes of a step, by those of an estimate
    "weights": ("parameters", "copies"),
    "gradients": ("gradients",),
    "optimizer": ("state",),
    "activations": ("activations",),
    "working": ("batch", "temporaries"),
}
CAUSES = {"gradients": "gradient", "weights": "parameter", "tensor parallel": "sequence"}  # exposed, by purpose
WHOLE, FEW, MORE = 12, 4, 2  # blocks: of steps that are compiled whole; of two that stand for all others, see `whole`
AROUND = ("final_scale", "final_shift")  # weights of the unit around all others


@dataclass(frozen=True)
class Whole:
    """Seconds of a step by cause, and bytes of a rank by class; what is not exposed exchange or the update is the
    "compute"."""

    seconds: dict[str, float]
    bytes: dict[str, int]

    def further(self, other: Whole, times: float) -> Whole:
        """What this has more than `other`, so many times more; layers one after the other work in the same place."""

        def line(one: float, two: float) -> float:
            return one + (one - two) * times

        seconds = {name: line(spent, other.seconds[name]) for name, spent in self.seconds.items()}
        sizes = {name: round(line(size, other.bytes[name])) for name, size in self.bytes.items()}
        return Whole(seconds, sizes | {"working": self.bytes["working"]})


def whole(programs: TimedPrograms, cluster: Cluster, model: Model, share: ShardSpec, microbatches: int) -> Whole:
    """The step of every rank of a cluster. Of many blocks `FEW` are compiled, once more with `MORE` besides, and each
    further one adds what those do. Raises what the compiler refuses."""
    if model.layers <= WHOLE:
        return _compiled(programs, cluster, work_of(model, share, cluster.ranks, microbatches))
    few, more = (
        _compiled(programs, cluster, work_of(_of_blocks(model, count), share, cluster.ranks, microbatches))
        for count in (FEW, FEW + MORE)
    )
    return more.further(few, (model.layers - FEW - MORE) / MORE)


def _of_blocks(model: Model, count: int) -> Model:
    """The model with so many blocks, of which there is one kind."""
    ((_, block),) = model.stacks
    return replace(model, stacks=((count, block),))


def _compiled(programs: TimedPrograms, cluster: Cluster, work: StepWork) -> Whole:
    others = NullCommunicator(0, cluster.ranks) if cluster.ranks > 1 else None
    session = replace(programs.session, instances=cluster.instances, communicator=others)
    made = [(part, cost_of(part, programs.executable(part.graph, part.graph.name, session))) for part in work.parts]
    step = StepPrograms([(cost.executable, part.times) for part, cost in made])
    exchange = step.communication()
    purposes = exchange["purposes"] if exchange is not None else {}
    seconds = {cause: purposes.get(purpose, {}).get("exposed_s", 0.0) for cause, purpose in CAUSES.items()}
    seconds["optimizer"] = sum(part.times * cost.phase_ps[UPDATE] for part, cost in made) / PS_PER_S
    seconds["compute"] = step.seconds - sum(seconds.values())
    memory = memory_of_step(work, made)
    return Whole(seconds, {name: sum(getattr(memory, part) for part in parts) for name, parts in CLASSES.items()})


def work_of(model: Model, spec: ShardSpec, ranks: int, microbatches: int = 1) -> StepWork:
    """The step of one of so many ranks, `share.tensor` of which share each layer. Takes decoders and encoders of text
    and images alike, without an encoder beside a decoder, experts or a divided context."""
    groups = tuple(tuple(range(i, i + spec.tensor)) for i in range(0, ranks, spec.tensor))
    apart = tuple(tuple(range(i, ranks, spec.tensor)) for i in range(spec.tensor))
    layers = ShardedLayers(f"{model.name}_step", spec, groups, apart)
    loss = layers.through(model)
    layers.b.output(loss)
    gradients = layers.of_parts(loss)
    whole = tuple(range(ranks))
    if microbatches == 1:
        update = OptimizerUpdate(layers.b, len(apart[0]), (whole,))
        update.apply(gradients, masters=list(layers.parts.values()))
        return StepWork([_part(layers.b.build(), loss=0)])
    for part, gradient in zip(layers.parts.values(), gradients):
        total = layers.b.input(f"sum_{part.name}", part.shape, float32)
        layers.b.output(layers.b.add(total, gradient), alias_of=total)
    after = GraphBuilder(f"{model.name}_update")
    masters = [after.input(name, part.shape, float32) for name, part in layers.parts.items()]
    sums = [after.input(f"sum_{x.name}", x.shape, float32) for x in masters]
    OptimizerUpdate(after, len(apart[0]), (whole,)).apply(sums, masters)
    first, last = _part(layers.b.build(), microbatches, 0), _part(after.build(), phase=UPDATE)
    return StepWork([first, last], _lying(last.graph))


def _part(graph: Graph, times: int = 1, loss: int | None = None, phase: str = "") -> GraphRuns:
    names = tuple(value.name or "" for value in graph.inputs)
    return GraphRuns(graph, times, tuple(map(_kind, names)), loss, phase, names)


def _kind(name: str) -> str:
    """What an input is, by its name."""
    kinds = {"given": "batch", "sum": "gradient", "mean": "state", "square": "state", "rate": "", "step": ""}
    return kinds.get(name.split("_")[0], "parameter")


def _lying(graph: Graph) -> list[LargeTensor]:
    """What lies on the device while the other program runs."""
    values = [(value, _kind(value.name or "")) for value in graph.inputs]
    return [LargeTensor(v.name or "", kind, v.shape, v.dtype.name, v.type.nbytes) for v, kind in values if kind]


class ShardedLayers(TrainingLayers):
    """Layers whose weights are gathered, a unit at a time. parts: of this rank, in float32, by name. apart: groups of
    ranks that divide weights."""

    def __init__(self, name: str, spec: ShardSpec, groups: Groups, apart: Groups) -> None:
        super().__init__(name, spec, groups)
        self.apart, self.parts = apart, dict[str, Value]()
        self._later: dict[str, Shape] = {}
        self._asked_again: list[Value] = []  # parts that are gathered once more though nobody reads them then
        self._sums: set[Value] = set()  # values whose gradients are not rounded on their way to the parts

    def through(self, model: Model) -> Value:
        """The loss of a microbatch."""
        units = _units(model, self.share)
        around = {name: shape for unit in units for name, shape in unit.items() if name in AROUND}
        self.b.kept.update(self._gather(around))
        steps = _steps(model)
        x: Value | None = None
        for unit, step in zip(units, steps):
            own = {name: shape for name, shape in unit.items() if name not in AROUND}
            if unit is units[-1]:  # after the norm that follows the last block
                self._later = own
            else:
                self._gather(own)
            if unit is units[0] and not (model.tied or model.embedding_norm):  # whose gradients ask for them
                self._asked_again = [self.parts[name] for name in own]
            x = step(self, x)
            if unit is units[0]:
                self._round_angles(model)
        assert x is not None
        return x

    def _round_angles(self, model: Model) -> None:
        """Cosines and sines of positions come in float32, as scripts make them, and are rounded once for all
        blocks."""
        sizes = {a.rope_size or a.size: None for a in (block.attention for _, block in model.stacks) if a.rope}
        for size in sizes:
            cosine, sine = (self.given((self.share.tokens, size), float32) for _ in range(2))
            self._angles[size] = self.b.convert(cosine, self.form), self.b.convert(sine, self.form)
            self.b.kept.update(self._angles[size])

    def looked_up(self, table: Value, ids: Value) -> Value:
        """Rows of a table. Weights of its unit are gathered for the backward pass as those of every other one, though
        no gradient is made of them (`fully_shard` asks for them before it knows)."""

        def back(d: Value, *_: object) -> list[Value]:
            again = [self.b.convert(self.b.optimization_barrier(part), self.form) for part in self._asked_again]
            if again and len(self.apart[0]) > 1:
                self.b.all_gather(again, self.apart, 0)
            return [self.b.scatter_add_rows(ids, self.b.convert(d, float32), table.shape[0])]

        return self.b.with_gradient(lambda table: (self.b.take_rows(table, ids),), [table], back)[0]

    def weight(self, name: str, *shape: int) -> Value:
        """A parameter of the unit that is gathered, or of the last one, which is gathered now."""
        if name in self._later:
            later, self._later = self._later, {}
            self._gather(later)
        return super().weight(name, *shape)

    def of_parts(self, loss: Value) -> list[Value]:
        """The sums of all ranks' gradients, this rank's part of each."""
        found = self.b.gradients({loss: self.b.constant(1.0, float32)}, list(self.parts.values()), self._sums)
        return [found[part] for part in self.parts.values()]

    def _gather(self, shapes: dict[str, Shape]) -> Sequence[Value]:
        """Make the weights of a unit of the parts of all ranks, with one collective."""
        if not shapes:
            return ()
        ranks, b = len(self.apart[0]), self.b
        parts = [b.input(name, part_of(shape, ranks), float32) for name, shape in shapes.items()]
        self.parts.update(zip(shapes, parts))
        rounded = [b.convert(part, self.form) for part in parts]
        whole = b.all_gather(rounded, self.apart, 0) if ranks > 1 else tuple(rounded)
        self._sums.update(rounded)
        for (name, shape), value in zip(shapes.items(), whole):
            flat = (prod(shape[:-1]), shape[-1]) if len(shape) > 2 else shape
            cut = b.slice_dim(value, 0, 0, flat[0]) if value.shape[0] > flat[0] else value
            self.weights[name] = b.reshape(cut, shape)
        return whole


Step = Callable[[TrainingLayers, "Value | None"], Value]


def _steps(model: Model) -> list[Step]:
    """What each unit computes of what the one before made."""
    blocks = [block for count, block in model.stacks for _ in range(count)]

    def through(i: int) -> Step:
        def step(layers: TrainingLayers, x: Value | None) -> Value:
            assert x is not None
            return layers.block(partial(blocks[i].forward, layers, f"block_{i}"), x)

        return step

    def last(layers: TrainingLayers, x: Value | None) -> Value:
        assert x is not None
        return layers.loss(model.head(layers, x))

    return [lambda layers, _: model.embedding(layers), *map(through, range(len(blocks))), last]


def _units(model: Model, spec: ShardSpec) -> list[dict[str, Shape]]:
    """Weights of each unit, by name: those that it is the first to ask for."""
    layers, found = TrainingLayers("units", spec, ((*range(spec.tensor),),)), list[dict[str, Shape]]()
    x: Value | None = None
    for step in _steps(model):
        known = set(layers.weights)
        x = step(layers, x)
        found.append({name: weight.shape for name, weight in layers.weights.items() if name not in known})
    return found

# SPDX-License-Identifier: Apache-2.0
"""What a rank's stage costs: compiled for the chip, timed, and measured for memory.

A layer is what one more of it adds: a stage of one block and one of two are compiled, and the difference is the
layer, with all that neighbours overlap.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trnlab.fleet.arrays import Floats
from trnlab.fleet.costs.activation_memory import activation_memory
from trnlab.fleet.costs.stages import ENTRY, JOIN, Stage, stage
from trnlab.fleet.costs.timed import Routines, TimedPrograms
from trnlab.fleet.costs.updates import adamw
from trnlab.fleet.layers.shares import ONCE, ShardSpec, heads_of_rank
from trnlab.fleet.layers.sizes import Dense, Experts, RelativeAttention
from trnlab.fleet.models.encoder_decoder import DecoderBlock
from trnlab.fleet.models.transformer import Block, Model
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.runtime.executable import Executable
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import BACKWARD, FORWARD, UPDATE, StepCost, phases
from trnlab.units import PS_PER_S

UPDATED = 1 << 24  # parameters of the update that is timed
OfParts = Callable[[Model, Sequence[Block], int], Graph]
HELD = ("working", "gathered")  # bytes that layers one after the other have in the same place


@dataclass(frozen=True)
class MicrobatchCost:
    """Cost of one microbatch on one rank: seconds forward and backward, what of both is exposed communication of its
    tensor group, and what of the backward pass makes something once more; bytes kept from one to the other, needed
    besides, and of its weights and gradients where these come and go; operations of its products.
    """

    forward: float = 0.0
    backward: float = 0.0
    exposed: float = 0.0
    saved: int = 0
    working: int = 0
    flops: float = 0.0
    again: float = 0.0
    gathered: int = 0
    late: float = 0.0  # seconds of the backward pass after the first gradient of a weight is there
    # traced, tensors: how many operators of its graph a host traces, and how many weights it has
    traced: float = 0.0
    tensors: float = 0.0

    def __add__(self, other: MicrobatchCost) -> MicrobatchCost:
        added = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return MicrobatchCost(**added | {name: max(getattr(self, name), getattr(other, name)) for name in HELD})

    def less(self, other: MicrobatchCost) -> MicrobatchCost:
        """What is more than `other`; working memory stays that of the larger one."""
        left = {f.name: max(getattr(self, f.name) - getattr(other, f.name), 0) for f in fields(self)}
        return MicrobatchCost(**left | {name: getattr(self, name) for name in HELD})

    def larger(self, times: float) -> MicrobatchCost:
        """The same stage for so many times as many sequences, or a part of each; weights are as large as before."""
        grown = {f.name: getattr(self, f.name) * times for f in fields(self)}
        same = {name: getattr(self, name) for name in ("gathered", "traced", "tensors")}
        return MicrobatchCost(**grown | same | {"working": max(grown["working"], self.working)})

    def divided(self, by: float, optimism: float, left: float = 1.0) -> MicrobatchCost:
        """The same stage of a tensor group `by` times as large: less work and memory, `optimism` of them. left: of
        what is exchanged."""
        exchanged = self.exposed / (self.forward + self.backward) if self.exposed else 0.0
        rest = (1 - exchanged) / by * optimism + exchanged * left
        part = {name: int(getattr(self, name) / by * optimism) for name in ("saved", *HELD)}
        times = {name: getattr(self, name) * rest for name in ("forward", "backward", "again", "late")}
        same = {name: getattr(self, name) for name in ("traced", "tensors")}
        return MicrobatchCost(**times, **same, **part, exposed=self.exposed * left, flops=self.flops / by)

    def remade(self, part: float) -> MicrobatchCost:
        """With so much of the forward pass made again in the backward pass, and nothing else."""
        again = self.forward * part
        return replace(self, backward=self.backward - self.again + again, again=again)

    def times(self, count: int) -> MicrobatchCost:
        """So many layers, one after the other, in the same working memory."""
        grown = {f.name: getattr(self, f.name) * count for f in fields(self)}
        return MicrobatchCost(**grown | {name: getattr(self, name) if count else 0 for name in HELD})


class Programs(TimedPrograms):
    """Costs of stages on a session's chip, compiled once. known: costs by what was asked, which are added to;
    routines: see `TimedPrograms`."""

    def __init__(
        self,
        session: Session,
        known: MutableMapping[str, Any] | None = None,
        routines: Routines | None = None,
    ) -> None:
        super().__init__(session, routines)
        self.known: MutableMapping[str, Any] = {} if known is None else known
        self._read: dict[str, MicrobatchCost] = {}

    def layer(self, model: Model, block: Block, spec: ShardSpec) -> MicrobatchCost:
        """Cost of one block between others. Operations are the model's."""
        found, a = self._between(model, block, spec), block.attention
        heads, keys = (n * spec.tensor for n in heads_of_rank(a.heads, a.kv_heads, spec.tensor))
        own = spec.context == 1 and (heads, keys) == (a.heads, a.kv_heads)
        return found if own else replace(found, flops=self._flops(model, block, spec))

    def _between(self, model: Model, block: Block, spec: ShardSpec) -> MicrobatchCost:
        one, two = (self.stage(model, (block,) * n, spec) for n in (1, 2))
        return two.less(one)

    def _flops(self, model: Model, block: Block, spec: ShardSpec) -> float:
        """Operations of this rank's part of a layer: those of a whole context, of which hidden pairs count, and of
        all heads, none of which is there twice or filled up, divided."""
        whole = replace(spec, context=1, tensor=1)
        one, two = (model_flops(stage(model, (block,) * n, whole, self.ranks).graph) for n in (1, 2))
        return float(two - one) / (spec.context * spec.tensor)

    def ends(self, model: Model, spec: ShardSpec, first: bool, last: bool) -> MicrobatchCost:
        """Cost of what precedes and follows the blocks, by a stage of one block with them and without, as it is
        between others and at the beginning; what is in the block does not matter to them, so that it is a plain
        one."""
        block = model.stacks[0 if first else -1][1]
        attention = ONCE.get(spec.attention, spec.attention)
        spec = replace(spec, length=spec.tokens, context=1, expert=1, attention=attention)
        if isinstance(block.network, Experts):
            block = replace(block, network=Dense(block.network.size, block.network.gated))
        without = self._between(model, block, spec) if first else self.stage(model, (block,), spec)
        found = self.stage(model, (block,), spec, first, last)
        return replace(found.less(without), late=max(found.late - without.backward, 0.0))

    def join(self, model: Model, block: Block, spec: ShardSpec) -> MicrobatchCost:
        """Cost of what lies between an encoder and this block of its decoder."""
        if not isinstance(block, DecoderBlock):
            return MicrobatchCost()
        spec = replace(spec, attention=ONCE.get(spec.attention, spec.attention))
        return self.stage(model, (block,), spec, also=JOIN).less(self.layer(model, block, spec))

    def entry(self, model: Model, block: Block, spec: ShardSpec) -> MicrobatchCost:
        """Cost of what each stage of such blocks makes once for all of them."""
        if not isinstance(block.attention, RelativeAttention):
            return MicrobatchCost()
        spec = replace(spec, attention=ONCE.get(spec.attention, spec.attention))
        return self.stage(model, (block,), spec, also=ENTRY).less(self.stage(model, (block,), spec))

    def stage(
        self,
        model: Model,
        blocks: tuple[Block, ...],
        spec: ShardSpec,
        first: bool = False,
        last: bool = False,
        also: str = "",
    ) -> MicrobatchCost:
        """Cost of these blocks, with the embedding or the head; also: see `stages.stage`."""
        key = _key(model if first or last or also == JOIN else None, blocks, spec, first, last)
        return self._kept(
            f"{key} {also}" if also else key, lambda: stage(model, blocks, spec, self.ranks, first, last, also)
        )

    def kept(self, key: str, make: Callable[[], Stage]) -> MicrobatchCost:
        """Cost of a graph that is no stage of blocks; key: what it is made of."""
        return self._kept(key, make)

    def update(self, parameters: Floats, rounded: bool = True) -> Floats:
        """Seconds of AdamW on so many parameters: memory sets its pace, so that a part of them shows it. rounded:
        whether weights are made of its own in float32."""
        key = "adamw" if rounded else "adamw of weights"
        known = self._kept(key, lambda: Stage(adamw(UPDATED, rounded), 0))
        return (known.forward + known.backward) * parameters / UPDATED

    def of_parts(self, model: Model, ranks: int, make: OfParts) -> float:
        """Seconds of `updates.sharded` or `updates.rounding`, on a part of each parameter, of so many ranks: a layer
        of each kind is what another one adds."""
        blocks = tuple(block for _, block in model.stacks)
        whole = self._of_blocks(model, blocks, ranks, make)
        more = (self._of_blocks(model, (*blocks, block), ranks, make) - whole for block in blocks)
        return whole + sum((count - 1) * max(one, 0.0) for (count, _), one in zip(model.stacks, more))

    def _of_blocks(self, model: Model, blocks: tuple[Block, ...], ranks: int, make: OfParts) -> float:
        key = f"{make.__name__} of parts {_key(model, blocks, ShardSpec(1, 1), True, True)} {ranks}"
        known = self._kept(key, lambda: Stage(make(model, blocks, ranks), 0))
        return known.forward + known.backward

    def _kept(self, key: str, make: Callable[[], Stage]) -> MicrobatchCost:
        key = key if self.cores == 1 else f"on {self.cores} cores {key}"
        if key not in self._read:
            if key not in self.known:
                self.known[key] = asdict(self._made(make(), key))
            self._read[key] = MicrobatchCost(**self.known[key])
        return self._read[key]

    def _made(self, made: Stage, key: str) -> MicrobatchCost:
        return _measured(self.executable(made.graph, key), made, float(model_flops(made.graph)))


def _key(model: Model | None, blocks: tuple[Block, ...], spec: ShardSpec, first: bool, last: bool) -> str:
    """What was asked, as text. model: where its ends take part."""
    ends = replace(model, name="", stacks=(), source="", sequence=0) if model is not None else None
    return repr((ends, blocks, spec, first, last))


def _measured(executable: Executable, made: Stage, flops: float) -> MicrobatchCost:
    program = executable.program
    cost = StepCost(executable, phases(program, program.outputs[made.forward_end], ()))
    spent, held = cost.phase_ps, activation_memory(cost, made)
    forward, backward = spent[FORWARD] / PS_PER_S, (spent[BACKWARD] + spent[UPDATE]) / PS_PER_S
    late = backward - _until_gradient(cost, made) / PS_PER_S
    return MicrobatchCost(
        forward,
        backward,
        cost.exposed_s,
        held.saved,
        held.working,
        flops,
        gathered=held.gathered,
        late=late,
        traced=len(made.graph.ops),
        tensors=len(made.weights),
    )


def _until_gradient(cost: StepCost, made: Stage) -> int:
    """Picoseconds of the backward pass until the first gradient of a weight is there."""
    gradients = {cost.program.outputs[i] for i in made.gradients}
    spent = 0
    for call, name, ps in zip(cost.program.calls, cost.phase, cost.call_ps):
        spent += ps if name != FORWARD else 0
        if not gradients.isdisjoint(call.args):
            break
    return spent

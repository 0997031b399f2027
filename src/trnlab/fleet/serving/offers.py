# SPDX-License-Identifier: Apache-2.0
"""Ways to serve a model on an instance: how many ranks share a copy, what fits beside its weights, how long its
programs take. Neuron's from compiled programs, others' by a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from trnlab import chips
from trnlab.chips.catalog import Target
from trnlab.chips.prices import Price, chosen
from trnlab.estimate.job import room
from trnlab.fabric.cluster import CORES_PER_RANK, parse
from trnlab.fleet.gpus import efficiency
from trnlab.fleet.gpus.catalogue import Instance, instance, instances
from trnlab.fleet.layers.shares import FILLED, filled
from trnlab.fleet.layers.sizes import Dense, Experts
from trnlab.fleet.models import counts
from trnlab.fleet.models.encoder_decoder import EncoderDecoderModel
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.serving.costs import MAKERS, ServingCosts
from trnlab.fleet.serving.graphs import decode, layers_of
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.fleet.serving.mixtures import met
from trnlab.fleet.serving.prompts import mixtures, prefill_cost
from trnlab.fleet.serving.queue import ReplicaTimes
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import dtype

BATCHES = (1, 4, 16, 64)
OTHERS = (*BATCHES, 256)  # of a roofline, which costs nothing
HALF = 2  # bytes of an element of weights and cache
CACHE = ("_keys", "_values")
GIVEN = ("ids", "places", "held", "seen", "buckets", "encoded")  # inputs that are neither weights nor cache
UNREAD = "no roofline is made of a decoder behind an encoder"
RESERVED = 0.1  # of a GPU's memory, for what is neither weights nor cache; assumed
FULL = "weights and one request do not fit in memory"
FEW = "no room for as many requests as experts that are divided take together"
# Of loaded experts (those of each token) to all: from here on all are read; below it experts that are divided among
# ranks are refused (aws-neuron/neuronx-distributed, modules/moe/expert_mlps.py at 083d3ea2, _v2.py: documented).
SELECTIVE = 1.0
COMPILED, ROOFLINE = "compiled programs", "roofline"
STORED = {"bf16": "", "int8": "int8", "fp8": "float8_e4m3"}  # how blocks' weights lie in memory, by name
PADDED = "heads or columns would be filled up with some that compute nothing: --ranks asks for it"


@dataclass(frozen=True)
class GenerationRequest:
    """Tokens of each request: of its prompt, and of the answer."""

    prompt: int
    output: int

    @property
    def places(self) -> int:
        """Places of the cache: prompt and answer, in steps of 256 as programs are made for."""
        return -(-(self.prompt + self.output) // 256) * 256

    @property
    def padded(self) -> int:
        """Padded length of the prompt's program, in steps of 128."""
        return -(-self.prompt // 128) * 128


@dataclass(frozen=True)
class ReplicaSettings:
    """What of a copy is given, None for what is chosen."""

    batch: int | None = None  # requests that decode together at most, in one program
    ranks: int | None = None  # of a copy
    weights: str = "bf16"  # how those of blocks are stored, of STORED

    def share(self, model: Model, request: GenerationRequest, tensor: int, expert: int) -> ServingProgram:
        """A rank's program of one request. A decoder behind an encoder has places for the answer alone."""
        stored = STORED[self.weights]
        if isinstance(model, EncoderDecoderModel):
            places = replace(request, prompt=0).places
            return ServingProgram(1, places, tensor, expert=expert, stored=stored, memory=request.padded)
        return ServingProgram(1, request.places, tensor, expert=expert, stored=stored)

    def room(self, most: int) -> str | None:
        """Why there is no room for the batch where there is for `most` requests."""
        if self.batch is None or self.batch <= most:
            return None
        return (
            f"a batch of {self.batch} does not fit beside the weights, room is for {max(most, 0)}: ask for a smaller "
            "one, more ranks or --weights int8"
        )


CHOSEN = ReplicaSettings()


@dataclass(frozen=True)
class Offer:
    """A way to serve on one instance."""

    target: str
    tensor: int  # ranks of a copy
    copies: int  # of the model on an instance
    engine: ReplicaTimes  # what one of them takes; bytes of a rank: weights, cache of a request, working, room
    weights: int
    cache: int
    working: int
    room: int
    basis: str
    exposed: float  # the share of a decoding step in which ranks wait for each other
    price: Price | None
    expert: int = 1  # ranks of a copy among which its experts are divided


@dataclass(frozen=True)
class RefusedOffer:
    """A way that cannot be, and why."""

    target: str
    tensor: int
    why: str


def degrees(model: Model, ranks: int, given: int | None = None) -> Iterator[tuple[int, int, str | None]]:
    """Sizes of tensor groups, among how many of a group's ranks experts are divided (none, and as many as can be),
    and why a size cannot be. Heads and columns that ranks do not divide are filled up (`shares.heads_of_rank`) where
    all ranks of an instance share a copy and FILLED is not exceeded, or where that size is given."""
    divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
    if given is not None and given not in divisors:
        can = ", ".join(map(str, divisors))
        yield given, 1, f"{given} ranks do not divide the {ranks} of an instance; ask for one of {can}"
        return
    for tensor in divisors if given is None else [given]:
        why = None
        most = math.inf if tensor == given else FILLED if tensor == ranks else 1.0
        if any(_filled(block, tensor) > most for _, block in model.stacks):
            why = PADDED
        found = _experts(model, tensor) if why is None else []
        if why is None and not found:
            why = "ranks do not divide the experts or their columns"
        yield from ((tensor, expert, why) for expert in found or [1])


def _filled(block: Block, tensor: int) -> float:
    """Heads of queries, or columns of a network, that so many ranks have together, as multiples of the model's."""
    a, network = block.attention, block.network
    wide = network.size if isinstance(network, Dense) else tensor
    return max(filled(a.heads, a.kv_heads, tensor), -(-wide // tensor) * tensor / wide)


def _experts(model: Model, tensor: int) -> list[int]:
    """Ranks of a tensor group among which experts can be divided: the fewest and the most."""
    networks = mixtures(model)
    able = [
        n
        for n in range(1, tensor + 1)
        if tensor % n == 0
        and all(x.count % n == 0 and x.size % (tensor // n) == 0 and x.shared % tensor == 0 for x in networks)
    ]
    return sorted({*able[:1], *able[-1:]}) if networks else [1]


def of_batch(model: Model, share: ServingProgram) -> ServingProgram | None:
    """A rank's program of a decoding step, as NxD reads experts: those of each token, or all of them where that were
    as many; None for the first on ranks that divide the experts."""
    networks = mixtures(model)
    if not networks:
        return share
    loaded = share.batch * networks[0].active / networks[0].count
    if loaded < SELECTIVE:
        return None if share.expert > 1 else replace(share, read=share.batch * networks[0].active)
    return replace(share, read=networks[0].count // share.expert)


def of_neuron(
    costs: ServingCosts,
    model: Model,
    request: GenerationRequest,
    policy: str,
    given: ReplicaSettings = CHOSEN,
) -> Iterator[Offer | RefusedOffer]:
    """All ways on a target of Neuron."""
    target = costs.session.target
    ranks, have = parse(target.name).ranks, room(target)
    for tensor, expert, why in degrees(model, ranks, given.ranks):
        if why is not None:
            yield RefusedOffer(target.name, tensor, why)
            continue
        share = given.share(model, request, tensor, expert)
        weights, cache = bytes_of(model, share)
        why = FULL if weights + cache > have else given.room((have - weights) // cache)
        if why is not None:
            yield RefusedOffer(target.name, tensor, why)
            continue
        before = prefill_cost(costs, model, share, request.padded)
        steps, working, exposed = _steps(costs, model, share, (have, weights, cache, before.working), given)
        if not steps:
            full = given.room((have - weights - before.working) // cache) or FULL
            yield RefusedOffer(target.name, tensor, full if expert == 1 or given.batch is not None else FEW)
            continue
        yield Offer(
            target.name,
            tensor,
            ranks // tensor,
            ReplicaTimes(before.seconds, steps, policy),
            weights,
            cache,
            working,
            have,
            COMPILED,
            exposed,
            target.price,
            expert,
        )


def _steps(
    costs: ServingCosts,
    model: Model,
    share: ServingProgram,
    memory: tuple[int, int, int, int],
    given: ReplicaSettings,
) -> tuple[dict[int, float], int, float]:
    """Seconds of decoding steps by batch, bytes that programs need beside, the share that is exposed exchange.
    memory: bytes of a rank, of its weights, of a request's cache, and what a prefill works with."""
    have, weights, cache, working = memory
    steps, exposed = {}, 0.0
    most = (have - weights - working) // cache
    for batch in sizes(most, BATCHES) if given.batch is None else [given.batch] * (given.batch <= most):
        program = of_batch(model, replace(share, batch=batch))
        if program is None:
            continue
        step = costs.of("decode", model, program)
        if weights + batch * cache + max(working, step.working) <= have:
            working, exposed = max(working, step.working), step.exposed / step.seconds
            steps[batch] = step.seconds
    return steps, working, exposed


def sizes(most: int, batches: tuple[int, ...]) -> list[int]:
    """Batches that programs are made for: those of the list that have room, and where the next one has not, one of
    nearly as many as have, 9 in 10 of them by eights (what else a program needs is not known before)."""
    fit = [batch for batch in batches if batch <= most]
    if len(fit) < len(batches):
        rounded = int(0.9 * most) // 8 * 8 or most
        fit += [rounded] * (rounded > max(fit, default=0))
    return fit


def bytes_of(model: Model, share: ServingProgram) -> tuple[int, int]:
    """Bytes of one rank: weights, and the cache of one request; exactly those of its programs' inputs."""
    group, made = (tuple(range(share.tensor)),), MAKERS if share.memory else {"decode": decode}
    kinds = {kind: make for kind, make in made.items() if kind != "prefill"}
    weights: dict[str, int] = {}
    more = cache = 0
    for kind, make in kinds.items():
        one, two = (_bytes(make(model, layers, share, group)) for layers in (1, 2))
        kept, added = ({n: size for n, size in found.items() if not n.endswith(CACHE)} for found in (one, two))
        held, held_by_two = (sum(size for n, size in x.items() if n.endswith(CACHE)) for x in (one, two))
        again = layers_of(kind, model) - 1
        weights |= kept
        more += again * (sum(added.values()) - sum(kept.values()))
        cache += held + again * (held_by_two - held)
    return sum(weights.values()) + more, cache // share.batch


def _bytes(graph: Graph) -> dict[str, int]:
    """Bytes of weights and caches, by name."""
    return {v.name: v.type.nbytes for v in graph.inputs if v.name not in GIVEN}


def logical_cores(target: Target) -> int:
    """NeuronCores of a rank, one of which is timed."""
    return CORES_PER_RANK.get(target.chip.name, 1)


def is_neuron(name: str) -> bool:
    """Whether a name is that of a target of Neuron; raises as `chips.target` for one that nobody knows."""
    if name in instances():
        return False
    chips.target(name)
    return True


def of_others(
    name: str, model: Model, request: GenerationRequest, policy: str, given: ReplicaSettings = CHOSEN
) -> Iterator[Offer | RefusedOffer]:
    """All ways on another vendor's instance: the larger of operations at the best rate that was measured for a
    product and of bytes at the memory's, and rings; no engine reaches it, so that it is a bound."""
    where = instance(name)
    if isinstance(model, EncoderDecoderModel):
        yield RefusedOffer(name, where.count, UNREAD)
        return
    have = int(where.accelerator.memory * (1 - RESERVED))
    for tensor, expert, why in degrees(model, where.count, given.ranks):
        if why is not None:
            yield RefusedOffer(name, tensor, why)
            continue
        shared = given.share(model, request, tensor, expert)
        weights, cache = bytes_of(model, shared)
        most = (have - weights) // cache
        why = given.room(max(most, 0))
        if why is not None:
            yield RefusedOffer(name, tensor, why)
            continue
        fit = sizes(most, OTHERS) if given.batch is None else [given.batch]
        steps = {b: _step(where, model, shared, b, weights, cache) for b in fit}
        if not steps:
            yield RefusedOffer(name, tensor, FULL)
            continue
        prefill = _step(where, model, shared, request.prompt, weights, 0, request.prompt)
        yield Offer(
            name,
            tensor,
            where.count // tensor,
            ReplicaTimes(prefill, steps, policy),
            weights,
            cache,
            0,
            have,
            ROOFLINE,
            0.0,
            chosen(name),
            expert,
        )


def _step(
    where: Instance, model: Model, share: ServingProgram, rows: int, weights: int, cache: int, context: int = 0
) -> float:
    """Seconds of so many rows of tokens: of a batch that reads its cache, or of a prompt over itself."""
    gpu = where.accelerator
    form = "bf16" if "bf16" in gpu.peaks else "fp16"
    rate = gpu.peak(form) * efficiency.product(gpu, form).share
    nbytes = weights - _unread(model, share, rows) + rows * cache
    memory = nbytes / (gpu.bandwidth * efficiency.of_memory(nbytes))
    ring = efficiency.inside(where).ring
    sums = (ring(rows * size * HALF, share.tensor, 2) for size in _sums(model, share))
    return max(_operations(model, rows, context) / share.tensor / rate, memory) + model.layers * sum(sums)


def _operations(model: Model, rows: int, context: int) -> float:
    """Operations of so many rows through all layers: of a prompt, or each the next of a sequence, with the head."""
    if context:
        return sum(n * counts.of_layer(model, block, context) for n, block in model.stacks)
    return rows * counts.operations(model, 1) / (1 + counts.BACKWARD)


@cache
def _sums(model: Model, share: ServingProgram) -> list[int]:
    """Elements of each sum over the ranks in a layer, for one token."""
    group = (tuple(range(share.tensor)),)
    one, two = ([op for op in decode(model, n, share, group).ops if op.name == "all_reduce"] for n in (1, 2))
    return [op.result.type.size for op in two[len(one) :]]


def _unread(model: Model, share: ServingProgram, rows: int) -> int:
    """Bytes of a rank's experts that so many rows do not meet."""
    total = 0
    for n, block in model.stacks:
        if isinstance(block.network, Experts):
            count = block.network.count
            left = count // share.expert - met(count, block.network.active, rows, share.expert)[0]
            each = dtype(share.stored or share.form).itemsize
            total += n * left * (block.expert_parameters // count) * each // (share.tensor // share.expert)
    return total

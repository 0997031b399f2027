# SPDX-License-Identifier: Apache-2.0
"""How a training run is divided over ranks, and which divisions are possible.

Ranks are numbered as the vendor's library does: pipeline stages outermost, then data, then context, then tensor
parallel ranks next to each other (neuronx_distributed, parallel_state.py). Experts are divided among neighbours of
the data and context parallel ranks, as Megatron-LM does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np

from trnlab.errors import UsageError
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.arrays import Bools, Floats, Ints
from trnlab.fleet.layers.shares import AGAIN, FILLED, filled, heads_of_rank
from trnlab.fleet.layers.sizes import Experts
from trnlab.fleet.models.transformer import Block, Model
from trnlab.stacks import KERNEL, WRITTEN

RECOMPUTE = ("none", "selective", "full")
ZERO = (0, 1, 3)
SHORT = {
    "tp": "tensor",
    "pp": "pipeline",
    "dp": "data",
    "mb": "microbatch",
    "vp": "interleave",
    "zero": "zero",
    "recompute": "recompute",
    "overlap": "overlap",
    "cp": "context",
    "ep": "expert",
    "attention": "attention",
    "network": "network",
}
# Values that have names, of columns where they stand by their places; attention is by a kernel, written out with its
# scores in memory, or written out and made again; of a network what is inside is kept, or made again.
NAMED = {"recompute": RECOMPUTE, "attention": (KERNEL, WRITTEN, AGAIN[WRITTEN]), "network": ("kept", "again")}
PLAIN = {"attention": KERNEL, "network": "kept"}  # which a layout says only where it is something else


@dataclass(frozen=True)
class Layout:
    """Ranks of each kind, and how they work."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    microbatch: int = 1  # sequences that a rank takes at a time
    interleave: int = 1  # stages that a pipeline's rank has
    # what is divided among the data parallel ranks: nothing (0), the optimizer's state (1), gradients and weights
    # as well (3)
    zero: int = 1
    # what the backward pass makes again: nothing, the core of attention (scores, softmax, product with the
    # values: Korthikanti et al. 2022), or all but what enters a layer
    recompute: str = "none"
    overlap: bool = True  # whether gradients and new weights are exchanged while others are still computed
    context: int = 1  # ranks that share a sequence
    expert: int = 1  # ranks that share the experts of a layer; they are among those of `data` and `context`
    attention: str = KERNEL  # these two: see NAMED
    network: str = "kept"

    @property
    def ranks(self) -> int:
        """Ranks of the whole run."""
        return self.tensor * self.context * self.pipeline * self.data

    def microbatches(self, batch: int) -> int:
        """That each pipeline takes in a step of `batch` sequences."""
        return batch // (self.data * self.microbatch)

    def __str__(self) -> str:
        parts = [f"TP{self.tensor}", f"PP{self.pipeline}" + (f"x{self.interleave}" if self.interleave > 1 else "")]
        parts += [f"{name}{n}" for name, n in (("CP", self.context), ("EP", self.expert)) if n > 1]
        parts += [f"DP{self.data}", f"MB{self.microbatch}"]
        parts += [f"ZeRO-{self.zero}"] if self.zero else []
        parts += [f"recompute {self.recompute}"] if self.recompute != "none" else []
        parts += [] if self.overlap else ["no overlap"]
        own = {name: getattr(self, name) for name in PLAIN}
        return " ".join([*parts, *(f"{name} {value}" for name, value in own.items() if value != PLAIN[name])])

    def spelled(self) -> str:
        """As the option --layout takes it."""
        values = ((short, getattr(self, name)) for short, name in SHORT.items())
        values = ((short, value) for short, value in values if PLAIN.get(short) != value)
        return ",".join(f"{short}={int(v) if isinstance(v, bool) else v}" for short, v in values)


def pinned(text: str) -> dict[str, int]:
    """`tp=8,pp=4`: what of a layout is given, as values of its columns. Raises UsageError (TRN177)."""
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        short, _, value = part.partition("=")
        short, value = short.strip(), value.strip()
        if SHORT.get(short, short) in found:
            raise _twice(short, text)
        if value in NAMED.get(short, ()):
            found[short] = NAMED[short].index(value)  # whose column has the same name
        elif short in SHORT and short not in NAMED and value.isdecimal():
            if (short == "zero" and int(value) not in ZERO) or (short == "overlap" and int(value) > 1):
                raise _unreadable(part)
            if short not in ("zero", "overlap") and int(value) < 1:
                raise _unreadable(part)
            found[SHORT[short]] = int(value)
        else:
            raise _unreadable(part)
    return found


def _twice(short: str, text: str) -> UsageError:
    return UsageError(
        f"--layout gives {short} twice",
        code="TRN177",
        got=text,
        limit="each name once",
        remedy="leave all but one of them out",
    )


def _unreadable(part: str) -> UsageError:
    numbers = ", ".join(name for name in SHORT if name not in NAMED)
    names = "; ".join(f"{name}=" + " or ".join(values) for name, values in NAMED.items())
    return UsageError(
        f"--layout cannot be read at {part!r}",
        code="TRN177",
        got=part,
        limit=f"NAME=NUMBER of {numbers}; zero=0, 1 or 3; overlap=0 or 1; {names}",
        remedy="write it as --layout tp=8,pp=4",
    )


@dataclass(frozen=True)
class Layouts:
    """Many layouts, as a column of each field of `Layout`; what has names by their places in NAMED."""

    columns: Mapping[str, Ints]

    def __len__(self) -> int:
        return len(self.columns["tensor"])

    def __getitem__(self, name: str) -> Ints:
        return self.columns[name]

    def layout(self, i: int) -> Layout:
        """One of them."""
        values = {name: int(column[i]) for name, column in self.columns.items()}
        named = {name: of[values[name]] for name, of in NAMED.items()}
        return Layout(**(values | named | {"overlap": bool(values["overlap"])}))  # type: ignore[arg-type]

    def take(self, which: Bools | Ints) -> Layouts:
        """Some of them."""
        return Layouts({name: column[which] for name, column in self.columns.items()})

    def microbatches(self, batch: int) -> Ints:
        """That each pipeline takes in a step."""
        return batch // (self["data"] * self["microbatch"])


def columns_of(layouts: Sequence[Layout]) -> Layouts:
    """Layouts as columns."""
    names = [f.name for f in fields(Layout)]
    found = {name: [getattr(x, name) for x in layouts] for name in names}
    found |= {name: [of.index(value) for value in found[name]] for name, of in NAMED.items()}
    return Layouts({name: np.array(found[name], np.int64) for name in names})


def obstacles(
    layouts: Layouts, model: Model, cluster: Cluster, batch: int, sequence: int, most: float = FILLED
) -> dict[str, Ints]:
    """Why layouts are impossible: of each reason that is met, which ones; each layout under the first reason only.
    most: heads that all ranks may have together, as a multiple of the model's."""
    found: dict[str, Ints] = {}
    free = np.ones(len(layouts), np.bool_)
    with np.errstate(divide="ignore"):
        for reason, fails in _conditions(layouts, model, cluster, batch, sequence, most):
            hit = free & fails
            if hit.any():
                found[reason] = np.flatnonzero(hit)
                free &= ~hit
    return found


def _conditions(
    x: Layouts, model: Model, cluster: Cluster, batch: int, sequence: int, most: float
) -> list[tuple[str, Bools]]:
    tensor, pipeline, data, several = x["tensor"], x["pipeline"], x["data"], x["interleave"] > 1
    context, expert = x["context"], x["expert"]
    stages, replicas = pipeline * x["interleave"], data * context
    heads, widths, experts = _undivided(x, model, most)
    each = np.maximum(batch // np.maximum(data * x["microbatch"], 1), 1)
    on_instance = cluster.target.chips * cluster.ranks_per_chip
    return [
        ("tensor parallel ranks would lie on several instances", tensor > on_instance),
        ("tensor parallel ranks do not divide the heads, which would be filled up by more than a half", heads),
        ("tensor parallel ranks do not divide the network", widths),
        ("tensor parallel ranks do not divide the sequence", (sequence // context) % tensor != 0),
        ("tensor parallel ranks do not divide what is decoded", model.decoded % tensor != 0),
        ("context parallel ranks share sequences of one stack", (context > 1) & (model.decoded > 0)),
        ("context parallel ranks do not divide the halves of the sequence", _uneven(x, sequence)),
        ("expert parallel ranks do not divide the experts", experts),
        ("expert parallel ranks are not among those of data and context", replicas % expert != 0),
        ("does not use all ranks of the cluster", tensor * replicas * pipeline != cluster.ranks),
        ("ranks of a data parallel group would have other places on other instances", _crooked(x, on_instance)),
        ("more stages than layers", stages > model.layers),
        ("interleaved stages of an encoder and its decoder would take turns", several & (model.decoded > 0)),
        ("interleaved stages would not be equal", several & ((pipeline == 1) | (model.layers % stages != 0))),
        ("the batch is not divided by data parallel ranks and microbatches", batch % (data * x["microbatch"]) != 0),
        ("interleaving takes microbatches in multiples of the stages", several & (each % pipeline != 0)),
        ("ZeRO needs several data parallel ranks", (x["zero"] > 0) & (replicas == 1)),
        ("ZeRO-3 would gather weights for each microbatch of a pipeline", (x["zero"] == 3) & (pipeline > 1)),
        ("nothing is exchanged that could overlap", (x["overlap"] == 0) & (replicas == 1)),
    ]


def filled_up(padding: Iterable[tuple[int, int]], ranks: int) -> list[str]:
    """What is said of heads that so many ranks do not divide. padding: as of `padding`."""
    return [
        f"{heads} heads are filled up to {all_ranks}, {all_ranks // ranks} on each of {ranks} ranks, as the vendor's "
        "libraries do; what is added computes nothing, and counts in no MFU"
        for heads, all_ranks in padding
    ]


def padding(model: Model, tensor: int) -> list[tuple[int, int]]:
    """Heads of queries of each kind of block that so many ranks do not divide, and to how many they are filled up."""
    found = []
    for _, block in model.stacks:
        a = block.attention
        all_ranks = heads_of_rank(a.heads, a.kv_heads, tensor)[0] * tensor
        if all_ranks > a.heads:
            found.append((a.heads, all_ranks))
    return found


def divided(model: Model, x: Layouts) -> Floats:
    """[N] by how much a tensor group divides the parameters of blocks: its ranks, less what heads are filled up with
    and heads of keys that several of them have."""
    kinds, which = np.unique(x["tensor"], return_inverse=True)
    found = [n / max((_grown(block, n) for _, block in model.stacks), default=1.0) for n in kinds.tolist()]
    return np.array(found, np.float64)[which.reshape(-1)]


def _grown(block: Block, tensor: int) -> float:
    """Parameters of a block that all ranks of a group have together, as a multiple of its own."""
    a = block.attention
    heads, keys = (n * tensor for n in heads_of_rank(a.heads, a.kv_heads, tensor))
    keyed = 0 if a.kv_rank else keys - a.kv_heads
    more = block.hidden * (heads - a.heads + keyed) * (a.size + a.value_size)
    return 1.0 + max(more, 0) / block.parameters


def _undivided(x: Layouts, model: Model, most: float) -> tuple[Bools, Bools, Bools]:
    """Whose heads would be filled up by too many, and whose columns of networks and experts are not divided by the
    ranks that share them."""
    heads, widths, experts = (np.zeros(len(x), np.bool_) for _ in range(3))
    several, networks = x["expert"] > 1, [block.network for _, block in model.stacks]
    for _, block in model.stacks:
        a, (kinds, which) = block.attention, np.unique(x["tensor"], return_inverse=True)
        more = np.array([filled(a.heads, a.kv_heads, n) > most if n else True for n in kinds.tolist()])
        heads |= more[which.reshape(-1)]
    for network in networks:
        widths |= network.size % x["tensor"] != 0
        if isinstance(network, Experts):
            widths |= network.shared % x["tensor"] != 0
            experts |= network.count % x["expert"] != 0
    if not any(isinstance(network, Experts) for network in networks):
        experts |= several
    return heads, widths, experts


def _uneven(x: Layouts, sequence: int) -> Bools:
    """A rank has a part of a sequence from its front and one from its end, which evens out what causality hides."""
    return np.asarray((x["context"] > 1) & (sequence % (2 * x["context"]) != 0))


def _crooked(x: Layouts, on_instance: int) -> Bools:
    """Whose groups lie differently on different instances, which the runtime refuses (TRN183)."""
    found = np.zeros(len(x), np.bool_)
    near = x["tensor"] * x["context"]
    for span in (near * x["data"], near, x["tensor"] * x["expert"]):
        inside = np.maximum(span, 1)
        found |= (inside % on_instance != 0) & (on_instance % inside != 0)
    return found


def layers_of(ranks: int, layers: int) -> list[int]:
    """Blocks of each pipeline rank: as equal as can be, the middle ones first, since the ends have more to do."""
    each, left = divmod(layers, ranks)
    inner = sorted(range(ranks), key=lambda i: -min(i, ranks - 1 - i))
    more = set(inner[:left])
    return [each + (i in more) for i in range(ranks)]

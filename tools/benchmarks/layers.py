# SPDX-License-Identifier: Apache-2.0
"""Parts of models, compiled and timed for training: a U-Net's step, a layer in fp8, layers of experts against dense
ones of as much work, a recommender's table that an update adds to, and the step of one."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks import lines
from trnlab import chips, compiler
from trnlab.fleet.costs import networks
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.layers.sizes import Dense, Experts
from trnlab.fleet.models.configurations import model
from trnlab.fleet.models.unpartitioned import UnpartitionedModel
from trnlab.frontends.torch import capture_step
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.flops import model_flops
from trnlab.graph.ir import Graph
from trnlab.numerics.dtypes import float32, int32
from trnlab.runtime.session import Session, activate
from trnlab.sim.timing import time_program
from trnlab.units import PS_PER_S

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_llama

UNET, SAMPLES = "sd15-unet", 4
MIXTURES, TOKENS = ("mixtral-8x7b", "qwen3-30b-a3b"), 4096
ROWS, WIDTH, IDS = (1 << 16, 1 << 20), 128, 4096  # of a table, a row, and of those that are added to
LENGTH = 2048


def seconds(graph: Graph, session: Session) -> float:
    """Of a graph on the chip."""
    program = compiler.compile(graph, session.chip, session.compile_options())
    return time_program(program, session.chip).total / PS_PER_S


# -- networks -------------------------------------------------------------------------------------------------------
def unet_line() -> lines.Line:
    """The step of a U-Net on a core of Trn1, in bf16, optimizer included."""
    session, known = Session(chips.target("trn1.2xlarge")), model(UNET)
    assert isinstance(known, UnpartitionedModel)
    (part,) = networks.step(known, SAMPLES, False, "bfloat16").work.parts
    step_s = seconds(part.graph, session)
    mfu = 100 * model_flops(part.graph) / step_s / session.chip.peak_flops("bfloat16")
    note = f"{step_s * 1e3:.0f} ms, {SAMPLES} latents of 64 x 64"
    return lines.at_least("Stable Diffusion's U-Net, training on trn1", mfu, 30, "% MFU", note)


# -- fp8 ------------------------------------------------------------------------------------------------------------
class Layers(nn.Module):
    """Blocks of Llama-3-8B; the loss is the mean of what leaves them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(train_llama.Block(train_llama.MODELS["8b"]) for _ in range(count))

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        """x [1, T, H], cosines and sines [T, D]."""
        x, cos, sin = given
        for block in self.blocks:
            x = block._forward(x, cos, sin)
        return x.float().mean()


def llama_seconds(precision: str, count: int) -> float:
    """Forward and backward of so many layers on Trn2."""
    session, config = Session(chips.target("trn2.3xlarge"), precision), train_llama.MODELS["8b"]
    torch.set_default_dtype(torch.bfloat16)
    with activate(session), FakeTensorMode(), torch.device("neuron"):
        shapes = ((1, LENGTH, config.hidden), *(2 * ((LENGTH, config.hidden // config.heads),)))
        graph = capture_step(Layers(count), None, None, [torch.zeros(shape) for shape in shapes]).graph
    torch.set_default_dtype(torch.float32)
    return seconds(graph, session)


def fp8_line() -> lines.Line:
    """A layer of Llama-3-8B in fp8 against bf16: what the second one adds."""
    narrow, wide = (llama_seconds(how, 2) - llama_seconds(how, 1) for how in ("fp8", "bf16"))
    note = f"{narrow * 1e3:.2f} ms against {wide * 1e3:.2f} ms, forward and backward, {LENGTH} tokens"
    return lines.at_least("a layer of Llama-3-8B on trn2 in fp8 / bf16", wide / narrow, 1.4, "x", note)


# -- experts --------------------------------------------------------------------------------------------------------
def experts_line(name: str) -> lines.Line:
    """A layer of experts, forward and backward, against a dense one of as many operations a token."""
    programs, known = Programs(Session(chips.target("trn2.3xlarge"))), model(name)
    ((_, block),) = known.stacks
    experts: Any = block.network
    assert isinstance(experts, Experts)
    dense = replace(block, network=Dense(experts.active * experts.size))
    spec = ShardSpec(1, TOKENS)
    costs = [programs.layer(known, each, spec) for each in (block, dense)]
    ours, theirs = (cost.forward + cost.backward for cost in costs)
    note = f"{ours * 1e3:.1f} ms against {theirs * 1e3:.1f} ms, {TOKENS} tokens, capacity {experts.capacity:g}"
    return lines.at_most(f"a layer of {name} / dense one, on trn2", ours / theirs, 1.2, "x", note)


# -- tables ---------------------------------------------------------------------------------------------------------
def update(rows: int) -> Graph:
    """Rows that are added to a table, which is overwritten."""
    b = GraphBuilder("update")
    table, ids = b.input("table", (rows, WIDTH), float32), b.input("ids", (IDS,), int32)
    b.output(b.scatter_add_rows(ids, b.input("learnt", (IDS, WIDTH), float32), rows, table), alias_of=table)
    return b.build()


def table_line() -> lines.Line:
    """A table that is updated in place takes the time of the rows that change, however many it has."""
    session = Session(chips.target("trn1.2xlarge"))
    small, large = (seconds(update(rows), session) for rows in ROWS)
    note = f"{large * 1e6:.0f} us against {small * 1e6:.0f} us: {IDS} rows added to {ROWS[1]:,} and to {ROWS[0]:,}"
    return lines.at_most("a recommender's table updated, large / small", large / small, 1.05, "x", note)


class Recommender(nn.Module):
    """The score of an item: a product of its row of a table."""

    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH // 2, sparse=sparse)
        self.score = nn.Linear(WIDTH // 2, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of ids [T]."""
        score: torch.Tensor = self.score(self.table(ids))
        return score.square().mean()


def step_of_table(rows: int, sparse: bool) -> Graph:
    """A step of SGD."""
    session = Session(chips.target("trn1.2xlarge"))
    with activate(session), FakeTensorMode(), torch.device("neuron"):
        learning = Recommender(rows, sparse)
        optimizer = torch.optim.SGD(learning.parameters(), lr=0.1)
        return capture_step(learning, optimizer, None, [torch.zeros(IDS, dtype=torch.int64)]).graph


def training_line(sparse: bool) -> lines.Line:
    """A recommender's step, of a table with ten times the rows and of one."""
    session, rows = Session(chips.target("trn1.2xlarge")), (ROWS[1] // 10, ROWS[1])
    small, large = (seconds(step_of_table(count, sparse), session) for count in rows)
    note = f"{large * 1e6:.0f} us against {small * 1e6:.0f} us: {IDS} ids, {rows[1]:,} and {rows[0]:,} rows"
    kind = "sparse" if sparse else "dense"
    return lines.at_most(f"a recommender's step, {kind} gradients, large / small", large / small, 1.05, "x", note)


def main() -> None:
    """Measure and report."""
    lines.report(
        [
            unet_line(),
            fp8_line(),
            *(experts_line(name) for name in MIXTURES),
            table_line(),
            *map(training_line, (False, True)),
        ]
    )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job in one process: each captures its step by itself, then all run theirs in threads at once."""

from __future__ import annotations

from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor._redistribute import clear_redistribute_planner_cache
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.testing._internal.distributed.fake_pg import FakeStore, _create_fake_pg
from torch.utils import _pytree as pytree

from trnlab import chips
from trnlab.compiler import compile
from trnlab.fabric.world import World, together
from trnlab.frontends.common import engine
from trnlab.frontends.torch import compile_step
from trnlab.frontends.torch.capture.subject import Subject
from trnlab.graph.interpret import interpret
from trnlab.sim.functional import run_program

dist.Backend.register_backend("fake", _create_fake_pg, extended_api=True, devices=["cpu", "neuron"])
CHIP = chips.get("trn1")


@contextmanager
def being(rank, size):
    """Within the block this process is the rank of a job, as far as torch.distributed knows. Nothing is sent."""
    _forget()
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _forget():
    """What DTensor remembers of plans and placements is that of one rank: a process is never two elsewhere."""
    clear_redistribute_planner_cache()
    _clear_sharding_prop_cache()
    for value in vars(_redistribute).values():
        getattr(value, "cache_clear", lambda: None)()


class RankEngine:
    """Compiles for one rank. compiled: on the simulated chip, else by the interpreter."""

    def __init__(self, compiled, options=()):
        self.compiled, self.options, self.ranks, self.graphs, self.programs = compiled, dict(options), None, [], []

    def compile(self, graph, frozen=()):
        self.graphs.append(graph)
        if self.compiled:
            options = {"precision": "fp32", "cluster": "trn1.32xlarge", "ranks": 2, **self.options}
            program = compile(graph, CHIP, options)
            self.programs.append(program)

        def run(inputs):
            if not self.compiled:
                outputs = interpret(graph, inputs, ranks=self.ranks)
            else:
                bound = {i: np.array(x) for i, x in zip(program.inputs, inputs)}
                outputs = [
                    bound.setdefault(i, np.zeros(v.shape, v.dtype.numpy))
                    for i, v in zip(program.outputs, graph.outputs)
                ]
                run_program(program, bound, CHIP, ranks=self.ranks)
            results = [np.array(o).reshape(v.shape) for o, v in zip(outputs, graph.outputs)]
            for i, j in graph.aliases.items():
                inputs[j][...] = results[i]
                results[i] = inputs[j]
            return results

        return engine.checked(graph, run)

    def step_done(self, loss, tokens):
        pass


def train(size, make, batches, *, compiled=False, options=(), max_norm=None):
    """Train on `size` ranks. make(rank) gives (model, optimizer, loss function); batches: per step, per rank.

    Returns per rank (model, losses, its engine). Each rank makes its model and captures its step while
    torch.distributed takes this process for that rank.
    """
    made, traces = [], []
    for rank in range(size):
        with being(rank, size):
            model, optimizer, loss = make(rank)
            mine = RankEngine(compiled, {"ranks": size, **dict(options)})
            step = compile_step(model, optimizer, loss, max_norm=max_norm)
            with engine.use(mine):
                traces.append(_captured(step, batches[0][rank]))
            made.append((model, step, mine))

    def run(ranks):
        model, step, mine = made[ranks.rank]
        mine.ranks = ranks
        losses = []
        for batch in batches:
            leaves, _ = pytree.tree_flatten(tuple(batch[ranks.rank]))
            subject = Subject(model, step.optimizer)
            _, loss = step._run(traces[ranks.rank], subject, leaves)
            losses.append(loss)
        return model, losses, mine

    return together(World("trn1.32xlarge", size), run)


def _captured(step, batch):
    """The step's program for such a batch."""
    from trnlab.frontends.torch import step as steps

    steps.settle(step.model)
    steps.prepare(step.optimizer)
    subject = Subject(step.model, step.optimizer)
    leaves, spec = pytree.tree_flatten(tuple(batch))
    trace = step._trace(subject, batch, leaves, (str(spec), *steps._batch_form(leaves)))
    step.captured = trace.captured
    return trace


def train_alone(model, optimizer, loss, batches, max_norm=None):
    """The same by eager PyTorch on the host, in one process on whole batches; returns the losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        losses.append(value.item())
    return losses

# SPDX-License-Identifier: Apache-2.0
"""Kernels on both cores of a logical core, in compiled models: values as PyTorch has them, and the step's time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gelu_kernels import gelu_forward, product
from helpers import TOLERANCE, worst_error
from torch import nn

import trnlab.frontends.torch as neuron
import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
import trnlab.nki.neuronxcc as old
import trnlab.nki.neuronxcc.language as onl
from trnlab import chips
from trnlab.checks import checks
from trnlab.errors import ConstraintError
from trnlab.frontends.common.engine import InterpreterEngine, use
from trnlab.program.parse import parse_program
from trnlab.program.routine import Program
from trnlab.program.text import program_text
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.session import Session, activate
from trnlab.sim.timing import on_both, on_two_cores, outline_of, outline_program, time_pair, time_program

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),  # Dynamo does it itself
]
TRN2 = chips.get("trn2")


@pytest.fixture(autouse=True)
def session(tmp_path):
    with activate(Session(chips.target("trn2"), "fp32", cache=Cache(tmp_path))) as now:
        yield now


@nki.jit
def turned(x):
    """The halves of the rows change places: each core doubles one in shared memory, and reads the other's."""
    out, doubled = (nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm) for _ in range(2))
    rows, cores = x.shape[0] // 2, nl.num_programs()
    tiles = [slice(at, min(at + 128, rows)) for at in range(0, rows, 128)]
    for i in range(nl.program_id(0), 2, cores):
        for t in tiles:
            part = slice(i * rows + t.start, i * rows + t.stop)
            nl.store(doubled[part], nl.multiply(nl.load(x[part]), 2.0))
    nisa.core_barrier(doubled, tuple(range(cores)))
    for i in range(nl.program_id(0), 2, cores):
        for t in tiles:
            part, other = (slice(k * rows + t.start, k * rows + t.stop) for k in (i, 1 - i))
            nl.store(out[part], nl.load(doubled[other]))
    return out


@nki.jit
def exchanged(x):
    """The same without the factor, over a wire between the cores."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    me, rows = nl.program_id(0), x.shape[0] // 2
    half = slice(me * rows, (me + 1) * rows)
    sent, got = (nl.ndarray((rows, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf) for _ in range(2))
    nisa.dma_copy(sent, x[half])
    nisa.sendrecv(sent, got, send_to_rank=1 - me, recv_from_rank=1 - me, pipe_id=0)
    nisa.dma_copy(out[half], got)
    return out


@old.jit
def old_double(x):
    out = onl.ndarray(x.shape, dtype=x.dtype, buffer=onl.shared_hbm)
    rows = x.shape[0] // onl.num_programs(0)
    i = onl.program_id(0)
    onl.store(out[i * rows : (i + 1) * rows], onl.multiply(onl.load(x[i * rows : (i + 1) * rows]), 2.0))
    return out


OLD = old_double[onl.nc(2)]


@nki.jit
def racing(x):
    """Both cores write all rows, each other values."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.add(nl.load(x), float(nl.program_id(0))))
    return out


def gelu_on(cores):
    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out, slope = gelu_forward[cores](x)
            ctx.save_for_backward(slope)
            return out

        @staticmethod
        def backward(ctx, dy):
            (slope,) = ctx.saved_tensors
            return product[cores](dy, slope)

    return Gelu.apply


def halves_change_places(x):
    first, second = x.chunk(2)
    return torch.cat([second, first])


REFERENCES = {
    "barrier": (lambda x: turned[2](x), lambda x: 2 * halves_change_places(x)),
    "exchange": (lambda x: exchanged[2](x), halves_change_places),
    "old dialect": (lambda x: OLD(x), lambda x: 2 * x),
    "one core of the two": (lambda x: turned[1](x), lambda x: 2 * halves_change_places(x)),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_values_between_what_is_compiled_around_them(name):
    kernel, reference = REFERENCES[name]
    x = torch.randn(64, 40)
    got = torch.compile(lambda x: kernel(x * 1.5) + 1, backend="neuron", fullgraph=True)(x.to("neuron"))
    assert worst_error(got.cpu(), reference(x * 1.5) + 1) < TOLERANCE


class Net(nn.Module):
    def __init__(self, activation, turn):
        super().__init__()
        self.first, self.last = nn.Linear(96, 80), nn.Linear(80, 10)
        self.activation, self.turn = activation, turn

    def forward(self, x):
        return self.last(self.turn(self.activation(self.first(x))))


def steps(net, x, y, device):
    """Losses of three steps and the parameters after them; in compiled steps on the chip."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    loss = nn.functional.cross_entropy
    if device == "cpu":
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            found = loss(net(x), y)
            found.backward()
            optimizer.step()
            losses.append(found.item())
    else:
        step = neuron.compile_step(net, optimizer, lambda net, x, y: loss(net(x), y))
        losses = [float(step(x.to(device), y.to(device))) for _ in range(3)]
    return losses, [p.detach().cpu() for p in net.parameters()]


def pair_of_nets(cores):
    """A model with kernels on so many cores, forward and backward, and the same of PyTorch alone."""
    turn = neuron.kernel_op(turned[cores], backward=lambda grads, inputs, outputs: turned[cores](grads[0]))
    ours = Net(gelu_on(cores), turn)
    theirs = Net(nn.functional.gelu, lambda x: 2 * halves_change_places(x))
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("cores", [1, 2])
def test_training_steps_agree_with_pytorch(session, cores, pairs):
    session.pairs = pairs
    torch.manual_seed(cores)
    ours, theirs = pair_of_nets(cores)
    x, y = torch.randn(192, 96), torch.randint(0, 10, (192,))
    expected, reference = steps(theirs, x, y, "cpu")
    got, parameters = steps(ours.to("neuron"), x, y, "neuron")
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    for mine, other in zip(parameters, reference):
        assert worst_error(mine, other) < 1e-4, "gelu of the chip and of PyTorch differ in the last bits, three times"


def executables(session, name="train_step"):
    return [e for e in session.executables.values() if e.name == name]


def step_of(session, cores, rows=2048) -> tuple[Program, object]:
    ours, _ = pair_of_nets(cores)
    x, y = torch.randn(rows, 96), torch.randint(0, 10, (rows,))
    step = neuron.compile_step(
        ours.to("neuron"),
        torch.optim.SGD(ours.parameters(), lr=0.1),
        lambda net, x, y: nn.functional.cross_entropy(net(x), y),
    )
    step(x.to("neuron"), y.to("neuron"))
    executable = executables(session)[-1]
    return executable.program, executable


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    """A step on two cores: the folder of the cache that keeps it, its program, and what runs it."""
    folder = tmp_path_factory.mktemp("cache")
    with activate(Session(chips.target("trn2"), "fp32", cache=Cache(folder))) as now:
        program, executable = step_of(now, 2, rows=256)
        assert executable.timeline.total
    return folder, program, executable


def test_the_time_is_in_the_steps_profile(session):
    program, executable = step_of(session, 2)
    kernels = [call for call in program.calls if "gelu_forward" in call.label]
    assert [(call.core, call.concurrent) for call in kernels] == [(0, False), (1, True)]
    assert (program.cores, executable.cores) == (2, 2), "the model runs on the logical core that the kernels ask for"
    t = executable.timeline
    assert t.cores == 2
    spans = {}
    for call in t.calls:
        rows = slice(call.first, call.first + call.count)
        spans[call.label] = int(t.start[rows].min()), int(t.done[rows].max())
    (begin, end), (other_begin, other_end) = spans["gelu_forward, core 0"], spans["gelu_forward, core 1"]
    assert max(begin, other_begin) < min(end, other_end), "both are at work at the same time"
    assert end <= t.total
    assert t.total < step_of(session, 1)[1].timeline.total, "one core alone takes longer"


def test_the_cores_of_a_step_meet_at_one_time(stepped):
    t = stepped[-1].timeline
    name = np.array([op.name for op in t.ops])[t.op]
    meetings = np.flatnonzero(name == "barrier")
    assert len(meetings) == 4, "forward and backward, on two cores"
    cores = t.core_of()[meetings]
    assert sorted(t.start[meetings[cores == 0]]) == sorted(t.start[meetings[cores == 1]])


@pytest.mark.parametrize("cores", [1, 2])
def test_estimates_take_the_same_time_without_keeping_instructions(stepped, cores):
    _, program, _ = stepped
    if cores == 1:
        t, laid = time_program(program, TRN2), program
    else:
        laid = on_two_cores(program, TRN2)
        t = time_program(laid, TRN2)
        assert t.total == time_pair(program, TRN2).total
        assert sum(map(bool, on_both(program, TRN2))) >= 6, "kernels at least"
    outline = outline_program(program, TRN2, cores=cores)
    assert outline.total == t.total
    if cores == 1:
        assert outline.ends == outline_of(t, program).ends


def test_what_the_cache_keeps_is_the_same_program(stepped):
    folder, program, first = stepped
    with activate(Session(chips.target("trn2"), "fp32", cache=Cache(folder))) as later:
        again, executable = step_of(later, 2, rows=256)
    assert (first.cache, executable.cache) == ("miss", "hit")
    assert program_text(again) == program_text(program)
    assert program_text(parse_program(program_text(program))) == program_text(program)
    assert executable.timeline.same_times(first.timeline)


def test_the_graphs_interpreter_agrees():
    x = torch.randn(64, 40)
    function = torch.compile(lambda x: turned[2](x * 1.5) + 1, backend="neuron", fullgraph=True)
    with use(InterpreterEngine()):
        expected = function(x.to("neuron")).cpu()
    torch._dynamo.reset()
    assert torch.equal(function(x.to("neuron")).cpu(), expected)


def test_cores_that_race_are_found_in_a_model():
    """As where the kernel is called by itself: what nothing orders is an error, and no number."""
    function = torch.compile(lambda x: racing[2](x * 2) + 1, backend="neuron", fullgraph=True)
    with checks(race="error"), pytest.raises(ConstraintError, match="TRN442"):
        function(torch.randn(64, 40).to("neuron"))


def test_layers_that_are_alike_share_the_routines_of_both_cores(session):
    x = torch.randn(64, 40)
    function = torch.compile(lambda x: turned[2](turned[2](x) + 1), backend="neuron", fullgraph=True)
    assert (
        worst_error(function(x.to("neuron")).cpu(), 2 * (2 * x + halves_change_places(torch.ones(64, 40))))
        < TOLERANCE
    )
    (executable,) = session.executables.values()
    kernels = [call for call in executable.program.calls if "turned" in call.label]
    assert len(kernels) == 4
    assert len({call.routine for call in kernels}) == 2


def test_functions_of_jax():
    jax = pytest.importorskip("jax")
    import trnlab.frontends.jax as on_chip

    x = np.random.default_rng(3).standard_normal((64, 40)).astype(np.float32)
    got = np.asarray(on_chip.jit(lambda x: turned[2](x * 1.5) + 1)(x))
    first, second = np.split(1.5 * x, 2)
    np.testing.assert_allclose(got, 2 * np.concatenate([second, first]) + 1, rtol=1e-6)
    assert jax.__name__ == "jax"

# SPDX-License-Identifier: Apache-2.0
"""Beside compiled code, operators are programs of the chip: what they compute, and what stays with the host."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]


@pytest.fixture
def here():
    """A session in which compiled code ran, and operators are not recorded."""
    torch.compiler.reset()
    target = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(target) as made, recording.using("operators"):
        torch.compile(lambda x: x + 1, backend="neuron")(torch.ones(2, device="neuron"))
        yield made


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def names(made):
    return [executable.name for executable in made.executables.values()]


CASES = {
    "arithmetic": lambda x, i: ((x + x.sin() * 0.5) / (x.abs() + 1) - 2).pow(2),
    "matmul of a transposed tensor": lambda x, i: x @ x.T,
    "rows of a slice": lambda x, i: x[:, 1:3].contiguous().softmax(-1),
    "reductions": lambda x, i: torch.stack([x.sum(), x.mean(), x.amax(), x.var(), x.norm()]),
    "written in place": lambda x, i: x.clone().mul_(3).add_(x, alpha=0.25).clamp_(-1, 1),
    "part of a tensor written": lambda x, i: (y := x.clone(), y[1].zero_(), y[:, 2].copy_(x[:, 0]), y)[-1],
    "into a given tensor": lambda x, i: torch.add(x, 1, out=torch.empty_like(x)),
    "into an empty tensor": lambda x, i: torch.abs(x, out=torch.empty(0, device=x.device)),
    "integers": lambda x, i: (i * 2 + 1) // 3,
    "chosen by integers": lambda x, i: x[i],
    "bools": lambda x, i: (x > 0) & (x < 1),
    "places": lambda x, i: x.argsort(-1),
    "several results": lambda x, i: torch.cat([t.float().reshape(-1) for t in x.max(-1)]),
    "made anew": lambda x, i: torch.full_like(x, 2.5) + torch.zeros_like(x),
    "convolution": lambda x, i: F.conv1d(x[None], x[:, :3].reshape(1, 4, 3)),
    "made from numbers": lambda x, i: torch.cat(
        [torch.arange(3, device=x.device, dtype=t).float() for t in (None, torch.int32, torch.bfloat16)]
        + [torch.linspace(0, 1, 5, device=x.device), torch.eye(2, device=x.device)[0]]
    ),
    "over what nobody wrote": lambda x, i: torch.empty_like(i).scatter_(0, i.clamp(max=2), i * 7),
    "with itself": lambda x, i: x.clone().mul_(x),
    "half of the digits": lambda x, i: (x.bfloat16() * 2).float(),
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_is_a_program_that_computes_what_pytorch_computes(here, case):
    x, i = floats(4, 6), torch.tensor([3, 1, 0])
    before = len(here.executables)
    got = CASES[case](x.to("neuron"), i.to("neuron"))
    expected = CASES[case](x, i)
    assert (got.dtype, got.shape, got.device.type) == (expected.dtype, expected.shape, "neuron")
    assert torch.allclose(got.cpu().float(), expected.float(), rtol=2e-6, atol=2e-6)
    assert neuron.fallback_counts() == {}
    assert len(here.executables) > before


def test_a_loss_and_its_gradient_outside_of_the_compiled_model(here):
    model, x, y = nn.Linear(6, 5), floats(4, 6), torch.tensor([1, 4, 0, 2])
    F.cross_entropy(model(x), y, label_smoothing=0.1).backward()
    expected = model.weight.grad.clone()
    model.zero_grad()
    model = model.to("neuron")
    F.cross_entropy(
        torch.compile(model, backend="neuron")(x.to("neuron")), y.to("neuron"), label_smoothing=0.1
    ).backward()
    assert torch.allclose(model.weight.grad.cpu(), expected, atol=1e-6)
    assert neuron.fallback_counts() == {}


def fused_adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr, fused=True)


@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, fused_adamw], ids=lambda k: k.__name__
)
def test_an_eager_optimizer_needs_no_new_programs_for_other_learning_rates(here, kind):
    """Clipping and the update run on the chip; the factors that change with every step are inputs."""
    ours, theirs = nn.Linear(6, 5), nn.Linear(6, 5)
    theirs.load_state_dict(ours.state_dict())
    ours, counts = ours.to("neuron"), []
    pairs = [(net, kind(net.parameters(), 0.05)) for net in (ours, theirs)]
    for step in range(4):
        for net, optimizer in pairs:
            x = floats(3, 6, seed=step).to(next(net.parameters()).device)
            net(x).square().sum().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] *= 0.7
        counts.append(len(here.executables))
    assert torch.allclose(ours.weight.cpu(), theirs.weight, atol=1e-6)
    assert counts[1] == counts[3]
    assert neuron.fallback_counts() == {}


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW], ids=lambda k: k.__name__)
def test_a_schedule_of_float_learning_rates_costs_a_compiled_optimizer_one_more_program(here, kind):
    ours, theirs = nn.Linear(6, 5), nn.Linear(6, 5)
    theirs.load_state_dict(ours.state_dict())
    ours, counts = ours.to("neuron"), []
    optimizers = [kind(net.parameters(), 0.05, weight_decay=0.1) for net in (ours, theirs)]
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (1 + i)) for o in optimizers]
    updates = [torch.compile(optimizers[0].step, backend="neuron"), optimizers[1].step]
    for step in range(11):
        for net, update, schedule in zip((ours, theirs), updates, schedules):
            net(floats(3, 6, seed=step).to(next(net.parameters()).device)).square().sum().backward()
            update()
            net.zero_grad()
            schedule.step()
        counts.append(sum(name.startswith("graph") for name in names(here)))
    assert counts[-1] - counts[0] == 1
    assert torch.allclose(ours.weight.cpu(), theirs.weight, atol=1e-6)


def test_what_the_chip_has_no_form_for_stays_with_the_host_and_is_counted(here):
    large = torch.tensor([2**40, 3]).to("neuron")
    assert (large + 1).tolist() == [2**40 + 1, 4]
    wide = torch.ones(3, dtype=torch.float64).to("neuron")
    assert (wide * 2).sum().item() == 6
    assert torch.tensor([0.0, 2.0, 0.0]).to("neuron").nonzero().tolist() == [[1]]
    torch.manual_seed(0)
    drawn = torch.empty(4, device="neuron").normal_()
    torch.manual_seed(0)
    assert torch.equal(drawn.cpu(), torch.empty(4).normal_())
    assert set(neuron.fallback_counts()) == {"aten::add", "aten::mul", "aten::sum", "aten::nonzero", "aten::normal_"}


def test_formats_of_results_are_kept_where_the_host_converts(here):
    """Into an empty tensor of another format PyTorch converts, and arange counts in the format of its result."""
    i = torch.tensor([1, 2, 3])
    for kind in (torch.float32, torch.float64, torch.uint8):
        made = torch.add(i.to("neuron"), 1, out=torch.empty(0, dtype=kind, device="neuron")).cpu()
        assert torch.equal(made, torch.tensor([2, 3, 4], dtype=kind))
        assert torch.equal(torch.arange(3, dtype=kind, device="neuron").cpu(), torch.arange(3, dtype=kind))


def test_printing_a_tensor_is_the_hosts_work(here):
    x = floats(3, 4)
    before = len(here.executables)
    assert repr(x.to("neuron")) == repr(x).replace("])", "], device='neuron:0')")
    assert len(here.executables) == before
    assert neuron.fallback_counts() == {}


def test_before_compiled_code_runs_the_host_computes():
    """Building and initialising a model compiles nothing."""
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")) as made:
        nn.Linear(3, 3).to("neuron")(torch.ones(2, 3, device="neuron")).relu()
        assert not made.executables


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda k: k.__name__)
def test_recurrent_layers_are_part_of_the_compiled_graph(here, kind):
    torch.manual_seed(0)
    cell, x = kind(4, 5, num_layers=2, bidirectional=True), floats(3, 2, 4)
    expected = cell(x)[0].detach()
    got = torch.compile(cell.to("neuron"), backend="neuron")(x.to("neuron"))[0]
    assert torch.allclose(got.cpu(), expected, atol=1e-6)
    assert [name.partition("_")[0] for name in names(here)[1:]] == ["forward"]


def test_masks_of_a_transformer_do_not_break_its_graph(here):
    torch.manual_seed(0)
    model, x, y = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True), floats(2, 5, 8), floats(2, 4, 8, seed=1)

    def run(net, device):
        mask = nn.Transformer.generate_square_subsequent_mask(4).to(device)
        hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
        return net(x.to(device), y.to(device), tgt_mask=mask, src_key_padding_mask=hidden)

    expected = run(model, "cpu").detach()
    got = run(torch.compile(model.to("neuron"), backend="neuron"), "neuron")
    assert torch.allclose(got.cpu(), expected, atol=2e-6)
    assert [name.partition("_")[0] for name in names(here)[1:]] == ["forward"]

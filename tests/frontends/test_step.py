# SPDX-License-Identifier: Apache-2.0
"""`compile_step`: a whole training step as one graph does what eager PyTorch on the CPU does, step after step."""

import copy
import io

import pytest
import torch
from helpers import TRN1, Beside, engine, worst_error
from models import GPT
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab.errors import UsageError
from trnlab.frontends.torch import recording

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def on():
    """Every step is computed as the simulated chip does it, and as the graph's interpreter defines it."""
    with engine(TRN1, Beside):
        yield


def batch(seed, device="cpu", rows=2):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 60, (rows, 16), generator=generator).to(device) for _ in range(2)]


def small(**options):
    torch.manual_seed(1)
    return GPT(layers=1, **options)


def groups(model):
    """Decay for matrices only, as GPT training scripts do."""
    wide = [p for p in model.parameters() if p.dim() > 1]
    return [{"params": wide}, {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]


OPTIMIZERS = {
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    "adamw_groups": lambda m: torch.optim.AdamW(groups(m), 1e-3, weight_decay=0.1),
    "adamw_capturable": lambda m: torch.optim.AdamW(m.parameters(), 1e-3, capturable=True),
    "adam_amsgrad": lambda m: torch.optim.Adam(m.parameters(), 1e-3, amsgrad=True, weight_decay=0.01),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 1e-1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), 1e-1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampened": lambda m: torch.optim.SGD(m.parameters(), 1e-1, momentum=0.9, dampening=0.5),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), 1e-4),
    "adadelta": lambda m: torch.optim.Adadelta(m.parameters(), 1e-1),
    "adamax": lambda m: torch.optim.Adamax(m.parameters(), 1e-3),
    "nadam": lambda m: torch.optim.NAdam(m.parameters(), 1e-3),
    "adagrad": lambda m: torch.optim.Adagrad(m.parameters(), 1e-2, lr_decay=0.1, eps=1e-5),
}


def eager_steps(model, optimizer, steps, max_norm=None, scheduler=None):
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = model(*batch(i))
        loss.backward()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_match_eager_steps(name):
    """After three steps parameters differ by rounding only: at most 2e-2 of the distance that they moved."""
    start = small()
    reference, model = copy.deepcopy(start), copy.deepcopy(start).to("neuron")
    if name == "adamw_capturable":
        reference = copy.deepcopy(start).to("neuron")
    theirs, ours = OPTIMIZERS[name](reference), OPTIMIZERS[name](model)
    if name == "adamw_capturable":
        reference.cpu()
        theirs = torch.optim.AdamW(reference.parameters(), 1e-3)
    step = neuron.compile_step(model, ours)
    expected = eager_steps(reference, theirs, 3)
    losses = [step(*batch(i, "neuron")).item() for i in range(3)]
    assert losses == pytest.approx(expected, rel=1e-5)
    for p, q, origin in zip(model.parameters(), reference.parameters(), start.parameters()):
        moved, apart = (q - origin).detach().abs().max(), (p.cpu() - q).detach().abs().max()
        assert float(apart) <= 2e-2 * float(moved)


def test_state_is_updated_in_place_and_stays_that_of_the_optimizer():
    model = small().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    weight = model.tokens.weight
    pointer = weight.data_ptr()
    step = neuron.compile_step(model, optimizer)
    step(*batch(0, "neuron"))
    moment = optimizer.state[weight]["exp_avg"]
    before = moment.cpu().clone()
    step(*batch(1, "neuron"))
    assert model.tokens.weight is model.head.weight is weight
    assert weight.data_ptr() == pointer
    assert optimizer.state[weight]["exp_avg"] is moment
    assert not torch.equal(moment.cpu(), before)
    assert {float(s["step"]) for s in optimizer.state.values()} == {2.0}


def test_the_steps_graph_is_one_program_with_donated_buffers():
    model = small().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    captured = neuron.capture_step(model, optimizer, None, batch(0, "neuron"))
    parameters = len(list(model.parameters()))
    kinds = [role.kind for role in captured.inputs]
    assert kinds.count("parameter") == parameters
    assert kinds.count("state") == 2 * parameters
    assert kinds.count("count") == kinds.count("rate") == 1
    assert len(captured.graph.aliases) == 3 * parameters + 1
    for out, source in captured.graph.aliases.items():
        assert captured.outputs[out].name == captured.inputs[source].name


@pytest.mark.parametrize("rate", [float, torch.tensor], ids=["a number", "a tensor"])
def test_a_schedule_needs_no_new_program(rate):
    """A rate that is a tensor, which schedules change in place, is an input like any other."""
    start = small()
    reference, model = copy.deepcopy(start), copy.deepcopy(start).to("neuron")
    theirs, ours = (torch.optim.AdamW(m.parameters(), rate(1e-2)) for m in (reference, model))
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.1) for o in (theirs, ours)]
    expected = eager_steps(reference, theirs, 3, scheduler=schedules[0])
    step = neuron.compile_step(model, ours)
    losses = []
    for i in range(3):
        losses.append(step(*batch(i, "neuron")).item())
        schedules[1].step()
    assert losses == pytest.approx(expected, rel=1e-5)
    assert len(step._programs) == 1


def test_clipping_matches():
    start = small()
    reference, model = copy.deepcopy(start), copy.deepcopy(start).to("neuron")
    theirs, ours = (torch.optim.SGD(m.parameters(), 1.0) for m in (reference, model))
    expected = eager_steps(reference, theirs, 2, max_norm=0.1)
    step = neuron.compile_step(model, ours, max_norm=0.1)
    assert [step(*batch(i, "neuron")).item() for i in range(2)] == pytest.approx(expected, rel=1e-5)
    for p, q in zip(model.parameters(), reference.parameters()):
        assert worst_error(p, q) <= 1e-5


def test_new_forms_get_new_programs():
    model = small(dropout=0.1).to("neuron")
    step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 1e-2))
    step(*batch(0, "neuron"))
    step(*batch(0, "neuron", rows=3))
    assert len(step._programs) == 2
    model.eval()
    step(*batch(0, "neuron"))
    assert len(step._programs) == 3
    step.optimizer.param_groups[0]["weight_decay"] = 0.1
    step(*batch(0, "neuron"))
    assert len(step._programs) == 4


def test_dropout_follows_the_seed():
    losses = []
    for _ in range(2):
        model = small(dropout=0.3).to("neuron")
        step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.0))
        torch.manual_seed(5)
        losses.append([step(*batch(0, "neuron")).item() for _ in range(3)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


class Counting(nn.Module):
    """Buffers of all kinds: an average, a 64-bit count, and a constant."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        y = self.linear(x) * self.scale
        with torch.no_grad():
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
            self.calls += 1
        return y.square().mean(), y


def test_buffers_are_updated_and_more_outputs_are_returned():
    torch.manual_seed(0)
    reference = Counting()
    model = copy.deepcopy(reference).to("neuron")
    step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    optimizer = torch.optim.SGD(reference.parameters(), 0.1)
    x = torch.randn(3, 4)
    for _ in range(2):
        loss, y = step(x.to("neuron"))
        optimizer.zero_grad()
        expected, expected_y = reference(x)
        expected.backward()
        optimizer.step()
        assert worst_error(loss, expected) <= 1e-5
        assert worst_error(y, expected_y) <= 1e-5
    assert model.calls.item() == 2
    assert worst_error(model.average, reference.average) <= 1e-5
    assert model.scale.cpu().tolist() == [2.0] * 4


def test_frozen_and_unused_parameters_stay():
    """Though the optimizer has all of them, decays weights, and the norm is clipped."""
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4), "c": nn.Linear(4, 4)}).to("neuron")
    model["a"].requires_grad_(False)
    before = {n: p.detach().cpu().clone() for n, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, weight_decay=0.1)
    step = neuron.compile_step(model, optimizer, lambda m, x: m["b"](m["a"](x)).square().mean(), max_norm=1.0)
    step(torch.ones(2, 4, device="neuron"))
    changed = {n for n, p in model.named_parameters() if not torch.equal(p.detach().cpu(), before[n])}
    assert changed == {"b.weight", "b.bias"}


def checkpoint(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("map_location", [None, "cpu", "neuron"])
def test_a_resumed_run_is_the_same_run(map_location):
    """Saved after two steps and loaded into new objects: the next steps have the same bits, dropout included."""
    model = small(dropout=0.2).to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    step = neuron.compile_step(model, optimizer)
    for i in range(2):
        step(*batch(i, "neuron"))
    file = checkpoint(model, optimizer)
    expected = [step(*batch(i, "neuron")).item() for i in (2, 3)]

    torch.manual_seed(99)
    again = GPT(layers=1, dropout=0.2).to("neuron")
    other = torch.optim.AdamW(again.parameters(), 1e-3)
    resumed = neuron.compile_step(again, other)
    loaded = torch.load(file, map_location=map_location)
    again.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["rng"].cpu())
    assert [resumed(*batch(i, "neuron")).item() for i in (2, 3)] == expected


def test_loading_a_checkpoint_in_the_middle_of_a_run_takes_effect():
    model = small().to("neuron")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    step = neuron.compile_step(model, optimizer)
    step(*batch(0, "neuron"))
    file = checkpoint(model, optimizer)
    expected = step(*batch(1, "neuron")).item(), step(*batch(2, "neuron")).item()
    loaded = torch.load(file)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    assert (step(*batch(1, "neuron")).item(), step(*batch(2, "neuron")).item()) == expected
    assert len(step._programs) == 1


def test_no_operator_of_a_step_runs_on_the_host():
    model = small().to("neuron")
    step = neuron.compile_step(model, torch.optim.AdamW(model.parameters(), 1e-3))
    neuron.reset_fallback_counts()
    for i in range(2):
        step(*batch(i, "neuron")).item()
    assert neuron.fallback_counts() == {}
    with recording.using("host"):
        model.tokens.weight + 1
    assert neuron.fallback_counts() == {"aten::add": 1}
    neuron.reset_fallback_counts()


def test_a_model_elsewhere_is_an_error():
    model = small()
    step = neuron.compile_step(model, torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UsageError, match=r"TRN111.*tokens\.weight"):
        step(*batch(0))


def test_a_loss_that_is_no_number_is_an_error():
    model = nn.Linear(4, 4).to("neuron")
    with pytest.raises(UsageError, match="TRN110"):
        neuron.capture_step(model, None, lambda m, x: m(x), [torch.ones(2, 4, device="neuron")])


@pytest.mark.parametrize("name", ["AdamW", "NAdam", "RAdam", "Adamax"])
def test_bias_corrections_keep_their_digits(name):
    """Five updates as in float64, to the weights' own rounding: 1 - beta^t in float32 alone is off by 1e-5 of it."""

    def trained(device, dtype):
        torch.manual_seed(0)
        model = nn.Linear(8, 4, bias=False).to(dtype).to(device)
        x = torch.linspace(-1, 1, 32, dtype=dtype).reshape(4, 8).to(device)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)

        def loss(m, x):
            return m(x).square().mean()

        def eager(x):
            optimizer.zero_grad()
            loss(model, x).backward()
            optimizer.step()

        step = eager if device == "cpu" else neuron.compile_step(model, optimizer, loss)
        for _ in range(5):
            step(x)
        return model.weight.detach().cpu().double()

    assert (trained("neuron", torch.float32) - trained("cpu", torch.float64)).abs().max() < 2e-7

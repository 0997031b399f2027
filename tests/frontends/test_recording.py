# SPDX-License-Identifier: Apache-2.0
"""Scripts that nobody edited: their operators are recorded and run as whole steps, with the values of the CPU."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.frontends.torch import recording
from trnlab.frontends.torch.recording import barriers, written_out
from trnlab.runtime import session

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::UserWarning:torch")]


class Counting(neuron.InterpreterEngine):
    """Counts what is compiled and what is run."""

    def __init__(self):
        self.graphs, self.runs = [], 0

    def compile(self, graph, frozen=()):
        self.graphs.append(graph)
        program = super().compile(graph, frozen)

        def run(inputs):
            self.runs += 1
            return program(inputs)

        return run


@pytest.fixture
def engine():
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(Counting()) as counting:
        yield counting
        recording.flush()


def floats(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def pending():
    return len(barriers._recorder.nodes)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(16, 3)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return F.log_softmax(self.out(self.drop(torch.flatten(x, 1))), dim=1)


def trained(device, make, steps=4):
    """The losses of a loop as people write it, the parameters, and the random number after it."""
    torch.manual_seed(0)
    model = Net()
    model.to(device)
    optimizer = make(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    losses = []
    for step in range(steps):
        x, y = floats(6, 1, 6, 6, seed=step).to(device), torch.arange(6).remainder(3).to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(x).sum().item())
    return losses, [t.cpu() for t in model.state_dict().values()], torch.rand(1)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, 0.01),
    "AdamW, one by one": lambda p: torch.optim.AdamW(p, 0.01, foreach=False, amsgrad=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, 1.0),
}


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_loop_trains_as_on_the_cpu_and_compiles_its_step_once_or_twice(engine, make):
    expected = trained("cpu", make)
    got = trained("neuron", make)
    torch.testing.assert_close(got[0], expected[0], rtol=2e-4, atol=2e-5)
    torch.testing.assert_close(got[1], expected[1], rtol=1e-3, atol=2e-4)
    assert torch.equal(got[2], expected[2])  # the generator moved on as far
    assert len(engine.graphs) <= 2 + 2  # the step, once more for the numbers that change; the evaluation
    host = neuron.fallback_counts() | neuron.fallback_counts("setup")
    assert set(host) <= {"aten::native_dropout", "aten::zero_"}


def test_a_step_seen_before_compiles_nothing_and_reads_what_was_recorded_anew(engine):
    w = floats(4, 4).to("neuron")
    for i in range(5):
        x = floats(4, seed=i).to("neuron")
        y = torch.tanh(x @ w) * i
        assert pending() > 0
        torch.testing.assert_close(y.cpu(), torch.tanh(floats(4, seed=i) @ w.cpu()) * i)
        assert pending() == 0
    assert len(engine.graphs) <= 5
    assert engine.runs == 5


CASES = {
    "a view of a view": lambda x: x[1:, ::2].t().mul(2)[0],
    "written through a view": lambda x: (y := x.clone(), y[:, 1].mul_(3), y[2:].t()[0].zero_(), y * 2)[-1],
    "a view sees later writes": lambda x: (y := x + 1, v := y[0], y.mul_(2), v + 1)[-1],
    "expanded": lambda x: x[:1].expand(4, 5) + x,
    "diagonal written": lambda x: (y := x[:4, :4].clone(), y.diagonal().fill_(7), y)[-1],
    "unfolded": lambda x: x[0].unfold(0, 3, 1).sum(1),
    "strided": lambda x: torch.as_strided(x * 2, (3, 3), (2, 1), 1),
    "channels last": lambda x: x.reshape(1, 2, 2, 5).to(memory_format=torch.channels_last).add(1).relu(),
    "norms of groups, channels last": lambda x: F.group_norm(
        x.repeat(2, 2).reshape(2, 2, 4, 5).to(memory_format=torch.channels_last), 2, x[0, :2], x[1, :2]
    ),
    "data replaced": lambda x: (y := x * 2, setattr(y, "data", x * 3), y + 0)[-1],
    "set to another": lambda x: (y := x * 2, y.set_(x * 5), y - 1)[-1],
    "resized to less": lambda x: (y := x * 2, y.resize_(2, 2), y.contiguous() + 1)[-1],
    "resized to more": lambda x: (y := x * 2, y.resize_(30), y[:20].clone())[-1],
    "copied over": lambda x: (y := x * 2, y.copy_(torch.ones(4, 5)), x.copy_(y[0]), x + y)[-1],
    "host memory into what is pending": lambda x: (y := x * 2, z := y + 1, y.copy_(torch.ones(4, 5)), z + y)[-1],
    "read before it is overwritten": lambda x: (z := x * 2, x.zero_(), z + x)[-1],
    "chosen by a mask": lambda x: (x * 2)[x > 0] + 1,
    "a condition": lambda x: x * 2 if (x.sum() * 2).item() > 0 else x * 3,
    "a number of float64": lambda x: (x * 2).double().mul(3).float() + 1,
    "complex numbers": lambda x: torch.view_as_real(torch.fft.fft(x * 2)) + 1,
    "into a given tensor": lambda x: torch.add(x, 1, out=torch.empty_like(x)) * 2,
    "made from numbers": lambda x: torch.arange(5, device=x.device) + torch.full((4, 5), 2.5, device=x.device),
    "nothing in it": lambda x: torch.cat([x[:0], x * 2]) + 1,
    "a list of tensors": lambda x: torch.stack(torch.split(x * 2, 2)).sum(0),
    "overwritten twice": lambda x: (y := torch.zeros(4, 5, device=x.device), y.add_(x), y.copy_(x * 2), y + 1)[-1],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_views_writes_and_sizes_mean_what_pytorch_means(engine, case):
    def run(device):
        x = floats(4, 5).to(device)
        result = case(x)
        return result.stride(), result.cpu(), x.cpu()

    got, expected = run("neuron"), run("cpu")
    assert got[0] == expected[0]
    torch.testing.assert_close(got[1:], expected[1:])


WAYS_TO_A_VALUE = {
    "item": lambda y: y.sum().item(),
    "print": lambda y: repr(y).replace(", device='neuron:0'", ""),
    "tolist": lambda y: y.tolist(),
    "cpu": lambda y: y.cpu().tolist(),
    "numpy": lambda y: y.cpu().numpy().tolist(),
    "truth": lambda y: bool((y > 0).any()),
    "deepcopy": lambda y: copy.deepcopy(y).tolist(),
    "storage": lambda y: list(y.untyped_storage().cpu()),
    "cloned storage": lambda y: list(y.untyped_storage().clone().cpu()),
    "equal": lambda y: torch.equal(y, y * 1),
    "nonzero": lambda y: y.nonzero().tolist(),
    "float64": lambda y: y.double().sum().item(),
    "into a tensor of the host": lambda y: torch.zeros(3).copy_(y).tolist(),
    "saved": lambda y: (f := io.BytesIO(), torch.save(y, f), f.seek(0), torch.load(f).tolist())[-1],
    "an array of the memory": lambda y: y.tolist() if y.device.type == "cpu" else neuron.to_numpy_alias(y).tolist(),
    "its address": lambda y: y.tolist() if y.device.type == "cpu" else at_address(y),
}


def at_address(y):
    import ctypes

    return list((ctypes.c_float * y.numel()).from_address(y.data_ptr()))


@pytest.mark.parametrize("way", WAYS_TO_A_VALUE.values(), ids=WAYS_TO_A_VALUE)
def test_whoever_needs_a_value_gets_it(engine, way):
    def run(device):
        x = floats(3).to(device)
        y = x * 2
        y.add_(1)
        return way(y)

    assert run("neuron") == run("cpu")


WRITES_BY_INDEX = {
    "a mask": lambda y, i: y.__setitem__(y < 0, -float("inf")),
    "a mask of rows": lambda y, i: y.__setitem__(y.sum(1) > 0, 7.0),
    "indices": lambda y, i: y.__setitem__((range(4), i), 2.0),
    "indices that come again": lambda y, i: y.__setitem__((i, i), floats(4, seed=2).to(y.device)),
    "added": lambda y, i: y.index_put_((i,), y * 2, accumulate=True),
    "columns": lambda y, i: y.__setitem__((slice(None), i[:2]), y[:, 3:] + 1),
}


@pytest.mark.parametrize("write", WRITES_BY_INDEX.values(), ids=WRITES_BY_INDEX)
def test_what_is_written_by_index_stays_in_the_step(engine, write):
    def run(device):
        y = floats(4, 5).to(device) * 2
        write(y, torch.tensor([1, 0, 3, 1]).to(device))
        return (y + 1).cpu()

    neuron.reset_fallback_counts()
    torch.testing.assert_close(run("neuron"), run("cpu"))
    assert engine.runs == 1
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


def test_errors_come_at_the_line_of_the_operator(engine):
    x = floats(4, 5).to("neuron")
    y = x * 2
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        y @ y
    with pytest.raises(RuntimeError, match="can't be cast to"):
        torch.arange(3, device="neuron").add_(y[0, :3])
    torch.testing.assert_close(y.cpu(), floats(4, 5) * 2)


def test_an_operator_without_a_form_is_left_to_the_host_and_the_rest_is_not(engine):
    x = (floats(3, 3) + 3 * torch.eye(3)).to("neuron")
    for _ in range(2):
        y = (torch.linalg.inv(x * 2) + 1).cpu()
    torch.testing.assert_close(y, torch.linalg.inv((floats(3, 3) + 3 * torch.eye(3)) * 2) + 1, rtol=1e-4, atol=1e-4)
    assert engine.runs > 0


def test_assignments_through_indices_and_masks_are_computed_on_the_chip(engine):
    before = neuron.fallback_counts()

    def assigned(device):
        table, rows, columns = (
            floats(4, 3).to(device),
            torch.arange(4).to(device),
            torch.tensor([0, 2, 1, 0]).to(device),
        )
        table[rows, columns] -= floats(4, seed=1).to(device)
        table[columns == 0] = 0.5
        return table.cpu()

    torch.testing.assert_close(assigned("neuron"), assigned("cpu"))
    assert neuron.fallback_counts() == before


def test_of_the_memory_that_is_gone_nothing_is_stored(engine):
    x = floats(4).to("neuron")
    y = (x.sin() + 1).exp()
    y.cpu()
    assert len(engine.graphs[-1].outputs) == 1


def test_a_slice_that_moves_over_a_data_set_needs_no_new_program(engine):
    data = floats(20, 3).to("neuron")
    for i in range(0, 20, 4):
        torch.testing.assert_close((data[i : i + 4] * 2).cpu(), floats(20, 3)[i : i + 4] * 2)
    assert len(engine.graphs) == 1


def test_integers_and_indices_out_of_range_are_the_hosts(engine):
    table = floats(4, 2).to("neuron")
    with pytest.raises(IndexError):
        F.embedding(torch.tensor([5]).to("neuron"), table).cpu()
    big = torch.tensor([2**40]).to("neuron") + 1
    assert big.item() == 2**40 + 1


def test_integers_that_nobody_wrote_yet_send_nothing_to_the_host(engine, monkeypatch):
    empty, strided = torch.empty, torch.empty_strided

    def filled(new):
        return new.fill_(1 << 40) if new.dtype is torch.int64 and new.device.type == "cpu" else new

    x = torch.tensor([[1, 2], [3, -100]]).to("neuron")
    monkeypatch.setattr(torch, "empty", lambda *args, **more: filled(empty(*args, **more)))
    monkeypatch.setattr(torch, "empty_strided", lambda *args, **more: filled(strided(*args, **more)))
    neuron.reset_fallback_counts()
    mean = (0 + x.ne(-100).sum()) / 1  # the count is gone before it is computed
    places = torch.arange(2, device="neuron") + 1
    assert mean.item() == 3
    assert places.tolist() == [1, 2]
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


@pytest.mark.parametrize("way", ["host", "operators"])
def test_the_old_ways_are_a_setting(engine, way, monkeypatch):
    with recording.using(way):
        x = floats(3).to("neuron") * 2
        assert pending() == 0
    torch.testing.assert_close(x.cpu(), floats(3) * 2)


def test_memory_without_elements_is_filled_and_joined(engine):
    empty = torch.ones(0, 3, device="neuron").zero_()
    assert torch.nn.functional.pad(empty, [0, 1]).cpu().shape == (0, 4)
    joined = torch.cat([empty.view(-1), floats(4).to("neuron") * 2])
    torch.testing.assert_close(joined.cpu(), floats(4) * 2)


HOSTS_RESULTS = {
    "a norm that is repeated": lambda x: F.normalize(x),
    "values that the host decomposes": lambda x: torch.linalg.svdvals(x).sum(),
    "a distance": lambda x: F.pairwise_distance(x, x + 1, keepdim=True) * 2,
    "bags": lambda x: F.embedding_bag(torch.tensor([[0, 1], [1, 2]], device=x.device), x, mode="mean"),
    "order statistics": lambda x: x.median(0).values + x.cummax(0).values,
}


def test_a_softmax_with_rows_that_see_nothing_writes_over_what_it_reads(engine):
    """PyTorch's own, of attention with a mask: its zeros are written to the tensor that they are chosen beside."""
    scores = floats(2, 4, 6)
    scores[0, 1] = -torch.inf
    got = torch._safe_softmax(scores.to("neuron"), -1)
    torch.testing.assert_close(got.cpu(), torch._safe_softmax(scores, -1))
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


def test_masks_are_read_and_written_by_their_places(engine):
    """As masks of padding are, element by element: what lies there is of the mask's kind, the places are numbers."""
    mask = floats(2, 8) > 0
    rows, columns = torch.arange(2)[:, None, None], torch.arange(8)[None, None]
    got = torch.vmap(lambda row: mask.to("neuron")[row, columns[0, 0].to("neuron")])(rows[:, 0, 0].to("neuron"))
    written = mask.to("neuron")
    written[:, columns[0, 0, :3].to("neuron")] = torch.ones(2, 3, dtype=torch.bool, device="neuron")
    assert torch.equal(got.cpu(), mask)
    assert torch.equal(written.cpu(), torch.cat([torch.ones(2, 3, dtype=torch.bool), mask[:, 3:]], 1))
    assert torch.equal(mask.to("neuron")[rows.to("neuron"), columns.to("neuron")].cpu(), mask[rows, columns])
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


DIAGONALS = {
    "filled": lambda x: x[0].fill_diagonal_(2.0),
    "copied": lambda x: x[1].diagonal().copy_(x[0, 0]),
    "below": lambda x: x[2].diagonal(-1).add_(3),
    "beside": lambda x: x[2, :3].diagonal(1).mul_(2),
    "tall": lambda x: x[2, :, :3].diagonal(-1).mul_(2),
    "of each matrix": lambda x: x.diagonal(dim1=-2, dim2=-1).mul_(2),
    "every second": lambda x: x.view(-1)[::2].mul_(2),
    "every second column": lambda x: x[:, :, ::2].add_(1),
    "every second row, turned": lambda x: x[:, 1::3].transpose(1, 2).copy_(x[:, ::4].transpose(1, 2).clone()),
    "across matrices": lambda x: x.diagonal(dim1=0, dim2=1).mul_(2),
    "of the columns": lambda x: x.diagonal(dim1=0, dim2=2).mul_(2),
}


@pytest.mark.parametrize("name", DIAGONALS)
def test_diagonals_and_steps_are_written_in_place_on_the_chip(engine, name):
    here, there = floats(3, 5, 5), floats(3, 5, 5).to("neuron")
    DIAGONALS[name](here)
    DIAGONALS[name](there)
    assert torch.equal(there.cpu(), here)
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


def test_the_gradient_of_a_diagonal_is_of_the_same_program(engine):
    found = {}
    for device in ("neuron", "cpu"):
        x = floats(4, 4).to(device).requires_grad_()
        torch.diag(x @ x).square().sum().backward()
        found[device] = x.grad.cpu()
    torch.testing.assert_close(found["neuron"], found["cpu"])
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}
    assert engine.runs == 1


TRIANGLE = torch.triu_indices(5, 5, 1)
HOSTS_INDICES = {
    "a triangle": lambda x: x[:, TRIANGLE[0], TRIANGLE[1]],
    "a permutation": lambda x: x[torch.tensor([2, 0, -1])],
    "a mask": lambda x: x[:, torch.eye(5) > 0],
    "a mask of bytes": lambda x: x[torch.tensor([True, False, True])],
    "one of each": lambda x: x[torch.tensor([0, 2]), :, torch.tensor([1, 4], device=x.device)],
    "written": lambda x: x.clone().index_put_((torch.tensor([1, 1]),), torch.ones(2, 5, 5, device=x.device), True),
}


@pytest.mark.parametrize("name", HOSTS_INDICES)
def test_indices_that_the_host_holds_are_taken_to_the_device(engine, name):
    found = {}
    for device in ("neuron", "cpu"):
        x = floats(3, 5, 5).to(device).requires_grad_()
        y = HOSTS_INDICES[name](x)
        (y * y).sum().backward()
        found[device] = y.detach().cpu(), x.grad.cpu()
    torch.testing.assert_close(found["neuron"], found["cpu"])
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}


def test_indices_that_the_host_holds_are_those_of_the_moment(engine):
    order = torch.tensor([1, 0])
    x = floats(2, 3)
    got = x.to("neuron")[order]
    order.fill_(0)
    assert torch.equal(got.cpu(), x[[1, 0]])


@pytest.mark.parametrize("index", [torch.tensor([0, 2]), torch.tensor([-3]), torch.tensor([True, False, True])])
def test_indices_of_the_host_that_lie_outside_are_refused_in_pytorchs_words(engine, index):
    with pytest.raises(IndexError) as expected:
        floats(2, 3)[index]
    with pytest.raises(IndexError) as got:
        floats(2, 3).to("neuron")[index]
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("where", [0, 1, 2])
def test_columns_that_are_not_there_are_joined_with_gradients_on_the_chip(engine, where):
    """A rotary embedding of all columns leaves none over: the step is one program all the same."""
    found = {}
    for device in ("neuron", "cpu"):
        x = floats(4, 8).to(device).requires_grad_()
        parts = [x[:, :5] * 2, x[:, 5:].exp()]
        parts.insert(where, x[:, 8:])
        torch.cat(parts, -1).square().sum().backward()
        found[device] = x.grad.cpu()
    assert torch.allclose(found["neuron"], found["cpu"], rtol=1e-5)
    assert neuron.fallback_counts("setup") == neuron.fallback_counts() == {}
    assert engine.runs == 1


@pytest.mark.parametrize(
    "join",
    [
        lambda x: torch.cat([x.int(), x[:, 8:]], 1),  # of another format, which the result takes
        lambda x: torch.cat([x[0, :0], x], 1),  # as old scripts have it: of one dimension
        lambda x: torch.cat([x[:, 8:], x[:, 8:]], 1),
        lambda x: x[:0].copy_(x[1:2]),
        lambda x: x.index_put_((x[:0, 0].long(), x[:0, 0].long()), x.new_tensor(3.0)),
    ],
)
def test_what_has_no_elements_means_what_pytorch_means(engine, join):
    got, expected = join(floats(4, 8).to("neuron")), join(floats(4, 8))
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert torch.equal(got.cpu(), expected)


@pytest.mark.parametrize(
    "join",
    [
        lambda x: torch.cat([x, x[:3, 8:]], 1),
        lambda x: torch.cat([x, x[:, 8:]], 0),
        lambda x: torch.cat([x[0, 0], x[0, :0]]),
        lambda x: x[:0].copy_(x),
        lambda x: x.index_put_((x[:0, 0] > 0,), x.new_tensor(3.0)),  # a mask of another length
        lambda x: x.index_put_((x[:0, 0].long(),), torch.tensor(3, device=x.device)),  # of another format
    ],
)
def test_what_has_no_elements_and_does_not_fit_is_refused_in_pytorchs_words(engine, join):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        join(floats(4, 8))
    with pytest.raises(expected.type) as got:
        join(floats(4, 8).to("neuron"))
    assert str(got.value) == str(expected.value)


@pytest.mark.parametrize("name", HOSTS_RESULTS)
def test_results_that_others_write_are_read_as_they_were_written(engine, name):
    """Their memory is given to the operator, and nothing else holds it when it is read."""
    x = floats(4, 5)
    torch.testing.assert_close(HOSTS_RESULTS[name](x.to("neuron")).cpu(), HOSTS_RESULTS[name](x))


@pytest.mark.parametrize("foreach", [True, False])
def test_operators_of_one_form_are_traced_once_however_many_layers_there_are(engine, monkeypatch, foreach):
    traced, pieces = [], written_out.pieces

    def counted(functions, *rest):
        traced[-1].append(len(functions))
        return pieces(functions, *rest)

    monkeypatch.setattr(written_out, "pieces", counted)
    for depth in (2, 5):
        torch.manual_seed(0)
        expected = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(depth)))
        model = copy.deepcopy(expected).to("neuron")
        traced.append([])
        for m in (expected, model):
            optimizer = torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4, foreach=foreach)
            for seed in range(3):
                m(floats(4, 8, seed=seed).to(next(m.parameters()).device)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        for a, b in zip(model.parameters(), expected.parameters()):
            assert torch.allclose(a.cpu(), b, rtol=1e-5, atol=1e-6)
    shallow, deep = traced
    assert shallow == deep

# SPDX-License-Identifier: Apache-2.0
"""Sparse matrices on the device: recorded, captured and differentiated, with the values of the CPU."""

from __future__ import annotations

import copy
import io
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trnlab.frontends.torch as neuron
from trnlab import chips
from trnlab.errors import UnsupportedOpError, UsageError
from trnlab.frontends.torch import recording
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]
ROWS, COLUMNS, WIDTH, EDGES = 7, 5, 4, 15


class Counting(neuron.InterpreterEngine):
    """Counts what is compiled."""

    compiled = 0

    def compile(self, graph, frozen=()):
        self.compiled += 1
        return super().compile(graph, frozen)


@pytest.fixture
def engine():
    here = session.Session(chips.target("trn1.2xlarge"), "fp32")
    with session.activate(here), recording.using("steps"), neuron.use(Counting()) as counting:
        neuron.reset_fallback_counts()
        yield counting
        recording.flush()


def generator(seed):
    return torch.Generator().manual_seed(seed)


def edges(seed=0):
    """Places of which some occur twice."""
    return torch.stack([torch.randint(0, n, (EDGES,), generator=generator(seed)) for n in (ROWS, COLUMNS)])


class Net(nn.Module):
    """Values, a matrix to multiply with and a bias, all of which learn."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        for name, shape in (("v", (EDGES,)), ("x", (COLUMNS, WIDTH)), ("b", (ROWS, WIDTH))):
            self.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator(len(shape)))))

    def forward(self, i, weights):
        y = self.compute(i, self.v, self.x, self.b)
        return (y * weights[: y.numel()].view(y.shape)).sum()


def coo(i, v):
    return torch.sparse_coo_tensor(i, v, (ROWS, COLUMNS))


@cache
def known():
    return coo(edges(), torch.ones(EDGES)).coalesce()


def merged(v):
    places = known().indices()
    return torch.sparse_coo_tensor(places.to(v.device), v[: places.shape[1]], (ROWS, COLUMNS), is_coalesced=True)


def csr(v):
    lines = known().to_sparse_csr()
    starts, columns = lines.crow_indices().to(v.device), lines.col_indices().to(v.device)
    return torch.sparse_csr_tensor(starts, columns, v[: columns.shape[0]], (ROWS, COLUMNS))


CASES = {
    "sparse.mm": lambda i, v, x, b: torch.sparse.mm(coo(i, v), x),
    "@": lambda i, v, x, b: coo(i, v) @ x,
    "spmm": lambda i, v, x, b: torch.spmm(coo(i, v), x),
    "a constant": lambda i, v, x, b: torch.sparse.mm(coo(i, v.detach()), x),
    "mv": lambda i, v, x, b: coo(i, v) @ x[:, 0],
    "addmm": lambda i, v, x, b: torch.addmm(b, coo(i, v), x, beta=2.0, alpha=3.0),
    "sparse.addmm": lambda i, v, x, b: torch.sparse.addmm(b, coo(i, v), x),
    "to_dense": lambda i, v, x, b: coo(i, v).to_dense() @ x,
    "turned": lambda i, v, x, b: torch.sparse.mm(coo(i, v).t(), b),
    "turned twice": lambda i, v, x, b: torch.sparse.mm(coo(i, v).t().transpose(0, 1), x),
    "sum": lambda i, v, x, b: torch.sparse.sum(coo(i, v)) * x.sum(),
    "sum of rows": lambda i, v, x, b: torch.sparse.sum(coo(i, v), dim=1).to_dense() * x.sum(),
    "softmax": lambda i, v, x, b: torch.sparse.mm(torch.sparse.softmax(merged(v), 1), x),
    "log_softmax": lambda i, v, x, b: torch.sparse.mm(torch.sparse.log_softmax(merged(v), 0), x),
    "times a number": lambda i, v, x, b: torch.sparse.mm(-coo(i, v) * 2 / 3.0, x),
    "times a matrix": lambda i, v, x, b: torch.sparse.mm(coo(i, v) * (b @ x.t()).detach(), x),
    "a sum of two": lambda i, v, x, b: torch.sparse.mm(coo(i, v) + merged(v), x),
    "a sum with a matrix": lambda i, v, x, b: (b @ x.t() + coo(i, v)) @ x,
    "from the right": lambda i, v, x, b: b.t() @ coo(i, v),
    "bmm": lambda i, v, x, b: torch.bmm(
        torch.sparse_coo_tensor(torch.cat([i[:1] % 2, i]), v, (2, ROWS, COLUMNS)), torch.stack([x, x])
    ),
    "embedding": lambda i, v, x, b: F.embedding(i[1], x, sparse=True),
    "embedding with padding": lambda i, v, x, b: F.embedding(i[1], x, padding_idx=2, sparse=True),
    "csr": lambda i, v, x, b: torch.sparse.mm(csr(v), x),
    "csr @": lambda i, v, x, b: csr(v) @ x,
    "csr mean": lambda i, v, x, b: torch.sparse.mm(csr(v), x, "mean"),
    "csr mv": lambda i, v, x, b: csr(v) @ x[:, 0],
    "csr addmm": lambda i, v, x, b: torch.addmm(b, csr(v), x),
    "csr to_dense": lambda i, v, x, b: csr(v).to_dense() @ x,
    "csr times a number": lambda i, v, x, b: torch.sparse.mm(csr(v) * 2, x),
    "coo to csr": lambda i, v, x, b: torch.sparse.mm(coo(i, v).to_sparse_csr(), x),
    "csr to coo": lambda i, v, x, b: torch.sparse.mm(csr(v).to_sparse_coo(), x),
}
BAGS = {
    "bags": lambda i, v, x, b: F.embedding_bag(
        i[1], x, torch.tensor([0, 4, 9], device=x.device), sparse=True, mode="sum"
    ),
    "means of bags": lambda i, v, x, b: F.embedding_bag(i[1].view(3, 5), x, padding_idx=2, sparse=True),
    "weighted bags": lambda i, v, x, b: F.embedding_bag(
        i[1].view(3, 5), x, sparse=True, mode="sum", per_sample_weights=v.detach().view(3, 5)
    ),
}
COUNTED = {  # what has a size that hangs on values: in recorded steps it is read, in captured ones refused
    "coalesce": lambda i, v, x, b: coo(i, v).coalesce().values().sum() * x.sum(),
    "softmax of what repeats": lambda i, v, x, b: torch.sparse.mm(torch.sparse.softmax(coo(i, v), 1), x),
    "to_sparse": lambda i, v, x, b: torch.sparse.mm((b @ x.t()).relu().to_sparse(), x),
}


def trained(compute, device, captured=False):
    """Losses of three steps, the last on another graph of the same size, and the parameters after them."""
    net = Net(compute).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    weights = torch.randn(100, generator=generator(9)).to(device)
    step = neuron.compile_step(net, optimizer) if captured else None
    losses = []
    for seed in (0, 0, 3):
        i = edges(seed).to(device)
        if step is not None:
            losses.append(step(i, weights).item())
            continue
        optimizer.zero_grad()
        loss = net(i, weights)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return [torch.tensor(losses), *(p.detach().cpu() for p in net.parameters())]


def agree(expected, got):
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(expected, got, strict=True))


@pytest.mark.parametrize("name", [*CASES, *COUNTED])
def test_recorded_steps_are_those_of_the_cpu(engine, name):
    compute = {**CASES, **COUNTED}[name]
    assert agree(trained(compute, "cpu"), trained(compute, "neuron"))
    assert not neuron.fallback_counts("training")


@pytest.mark.parametrize("name", CASES)
def test_captured_steps_are_those_of_the_cpu(engine, name):
    assert agree(trained(CASES[name], "cpu"), trained(CASES[name], "neuron", captured=True))


@pytest.mark.parametrize("name", BAGS)
def test_sparse_gradients_of_bags(engine, name):
    assert agree(trained(BAGS[name], "cpu"), trained(BAGS[name], "neuron"))
    with pytest.raises(UnsupportedOpError, match=r"TRN201.*EmbeddingBag"):
        trained(BAGS[name], "neuron", captured=True)


@pytest.mark.parametrize("name", COUNTED)
def test_a_size_that_hangs_on_values_is_refused_in_a_captured_step(engine, name):
    with pytest.raises(UnsupportedOpError, match="TRN204"):
        trained(COUNTED[name], "neuron", captured=True)


def test_the_structure_is_an_input(engine):
    """One program serves every graph of a size."""
    trained(CASES["sparse.mm"], "neuron", captured=True)
    assert engine.compiled == 1


class Graph(nn.Module):
    """A graph convolution whose adjacency is a buffer."""

    def __init__(self, adjacency):
        super().__init__()
        self.register_buffer("adjacency", adjacency)
        self.other = None
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        y = torch.sparse.mm(self.adjacency, self.linear(x))
        return y if self.other is None else y + self.other @ self.linear(x)


def adjacency(seed, layout=torch.sparse_coo):
    i = torch.randint(0, 8, (2, 20), generator=generator(seed))
    made = torch.sparse_coo_tensor(i, torch.rand(20, generator=generator(seed)), (8, 8))
    return made if layout is torch.sparse_coo else made.coalesce().to_sparse(layout=layout)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_a_buffer_that_is_replaced_is_followed(engine, layout):
    found = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        net = Graph(adjacency(0, layout)).to(device)
        net.other = adjacency(5).to(device)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)

        def loss_of(net, x):
            return net(x).square().mean()

        step = neuron.compile_step(net, optimizer, loss_of) if device == "neuron" else None
        losses, x = [], torch.randn(8, 6, generator=generator(1)).to(device)
        for seed in (0, 1):
            net.adjacency = adjacency(seed, layout).to(device)
            if step is not None:
                losses.append(step(x).item())
                continue
            optimizer.zero_grad()
            loss = loss_of(net, x)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found.append(losses)
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert engine.compiled == (
        1 if layout is torch.sparse_coo else 2
    )  # those of lines have another number of elements


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_a_sparse_argument_of_a_captured_step(engine, layout):
    net = nn.Linear(6, 3).to("neuron")
    step = neuron.compile_step(
        net, torch.optim.SGD(net.parameters(), 0.0), lambda net, a, x: (a @ net(x)).square().mean()
    )
    x = torch.randn(8, 6, generator=generator(1))
    for seed in (0, 4):
        a = adjacency(seed, torch.sparse_coo).coalesce()
        a = torch.sparse_coo_tensor(a.indices()[:, :15], a.values()[:15], a.shape).coalesce()
        a = a if layout is torch.sparse_coo else a.to_sparse_csr()
        with torch.no_grad():
            expected = (a @ F.linear(x, net.weight.cpu(), net.bias.cpu())).square().mean()
        assert step(a.to("neuron"), x.to("neuron")).item() == pytest.approx(expected.item(), rel=1e-5)
    assert engine.compiled == 1


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_they_move_are_copied_printed_and_saved(engine, layout):
    host = adjacency(0, layout)
    device = host.to("neuron")
    assert (device.device.type, device.layout) == ("neuron", layout)
    file = io.BytesIO()
    torch.save(device, file)
    file.seek(0)
    for other in (device.cpu(), copy.deepcopy(device), torch.load(file), device.clone()):
        assert other.layout is layout
        assert torch.equal(other.to_dense().cpu(), host.to_dense())
    assert device.to(torch.bfloat16).dtype is torch.bfloat16
    assert "neuron" in repr(device)


HALF = torch.eye(4) / 2
LINES, ROW, TWO = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2)
# Many of them are made by kernels of PyTorch that serve every device, and tell a device nothing.
MAKERS = {
    "moved coo": lambda d: HALF.to_sparse().to(d),
    "moved csr": lambda d: HALF.to_sparse_csr().to(d),
    "moved csc": lambda d: HALF.to_sparse_csc().to(d),
    "coo of parts": lambda d: torch.sparse_coo_tensor(torch.stack((ROW, ROW)), TWO, (2, 2), device=d),
    "csr of parts": lambda d: torch.sparse_csr_tensor(LINES, ROW, TWO, (2, 2), device=d),
    "csr of parts that say its size": lambda d: torch.sparse_csr_tensor(LINES.to(d), ROW.to(d), TWO.to(d)),
    "compressed": lambda d: torch.sparse_compressed_tensor(
        LINES, ROW, TWO, (2, 2), layout=torch.sparse_csc, device=d
    ),
    "zeros": lambda d: torch.zeros((2, 2), layout=torch.sparse_csr, device=d),
    "zeros like a csr of the host": lambda d: torch.zeros_like(HALF.to_sparse_csr(), device=d),
    "full like a csr of the host": lambda d: torch.full_like(HALF.to_sparse_csr(), 2.0, device=d),
    "zeros like a coo of the host": lambda d: torch.zeros_like(HALF.to_sparse(), device=d),
    "dense": lambda d: HALF.to(d).to_sparse(),
    "dense to csr": lambda d: HALF.to(d).to_sparse_csr(),
    "dense to csc": lambda d: HALF.to(d).to_sparse(layout=torch.sparse_csc),
    "filled": lambda d: HALF.to_sparse_csr().to(d).fill_(3),
    "resized": lambda d: HALF.to_sparse().to(d).sparse_resize_((5, 5), 2, 0),
}


@pytest.mark.parametrize("way", MAKERS)
def test_every_way_of_making_one(engine, way):
    expected, got = (MAKERS[way](device) for device in ("cpu", "neuron"))
    assert (got.device.type, got.layout) == ("neuron", expected.layout)
    assert torch.equal(expected.to_dense(), (got + got).to_dense().cpu() / 2)


@pytest.mark.parametrize(
    "make",
    [
        lambda: HALF.to_sparse_bsr((2, 2)).to("neuron"),
        lambda: HALF.to_sparse_bsc((2, 2)).to("neuron"),
        lambda: HALF.to("neuron").to_sparse_bsr((2, 2)),
        lambda: torch.zeros((2, 2), layout=torch.sparse_bsr, device="neuron"),
        lambda: torch.sparse_bsr_tensor(LINES, ROW, torch.ones(2, 2, 2), (4, 4), device="neuron"),
    ],
)
def test_matrices_of_blocks_are_refused_however_they_are_made(engine, make):
    with pytest.raises(UsageError, match=r"TRN150.*sparse ones in COO"):
        make()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad])
def test_sparse_gradients_of_embeddings(engine, optimizer):
    weights = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        table = nn.Embedding(6, 3, sparse=True).to(device)
        learns = optimizer(table.parameters(), lr=0.1)
        for _ in range(3):
            learns.zero_grad()
            (table(torch.tensor([1, 2, 1, 4], device=device)) ** 2).sum().backward()
            learns.step()
        weights.append(table.weight.detach().cpu())
    assert torch.allclose(*weights, atol=1e-6)


def test_a_gradient_that_is_looked_at_has_each_place_once(engine):
    found = []
    for device in ("cpu", "neuron"):
        a = coo(edges(), torch.ones(EDGES)).to(device).requires_grad_()
        torch.sparse.mm(a, torch.arange(20.0, device=device).view(5, 4)).sum().backward()
        found.append(a.grad.to_dense().cpu())
    assert torch.allclose(*found)


def test_what_has_no_form_is_the_hosts(engine):
    a = coo(edges(), torch.ones(EDGES))
    product = torch.sparse.mm(a.to("neuron"), a.t().to("neuron"))
    assert torch.equal(product.to_dense().cpu(), torch.sparse.mm(a, a.t()).to_dense())
    assert "aten::_sparse_sparse_matmul" in {**neuron.fallback_counts("training"), **neuron.fallback_counts("setup")}

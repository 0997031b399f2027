# SPDX-License-Identifier: Apache-2.0
"""Operators that PyTorch takes apart nowhere: distances, grids, diagonals, medians, what is largest so far, searches.

PyTorch's own samples of them are in `make opdb`; here are real sizes, values that are not finite, and layers trained
beside the host.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import check, engine
from torch import nn

import trnlab.frontends.torch as neuron

NAN, INF = float("nan"), float("inf")
HOSTILE = torch.tensor([[1.0, NAN, -INF, 2.0, -0.0], [INF, 3e38, -3e38, 1e-30, 0.0], [NAN, NAN, NAN, NAN, 1.0]])


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5, 2.0, 3.0, INF])
def test_distances_and_their_gradients(p):
    """Small sets; where points coincide nothing is divided by zero."""
    x, y = random(2, 6, 4), random(2, 5, 4, seed=1)
    y[:, 0] = x[:, 0]
    check(lambda x, y: torch.cdist(x, y, p), [x, y], gradients=p != 0, rtol=1e-5, atol=1e-5)


def test_distances_of_many_points_are_matrix_products():
    graph = check(lambda x, y: torch.cdist(x, y), [random(40, 16), random(96, 16, seed=1)], rtol=1e-4, atol=1e-4)
    assert any(op.name == "dot_general" for op in graph.ops)


@pytest.mark.parametrize("offset", [-3, -1, 0, 2, 7])
def test_diagonals(offset):
    check(lambda x: torch.diagonal(x, offset, 1, 0), [random(5, 7, 3)])
    check(lambda x: torch.diagonal(x, offset, -1, -2).sum(-1), [random(2, 6, 4)])


def test_a_diagonal_that_is_written():
    def function(x, y):
        x = x.clone()
        torch.diagonal(x, 1, 0, 2).copy_(y)
        return x

    check(function, [random(4, 3, 5), random(3, 4, seed=1)])


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian, torch.cummax, torch.cummin])
def test_values_that_are_not_finite_are_ordered_as_on_the_host(function):
    """Where several elements are equal PyTorch leaves open which is named, but not for `cummax` and `cummin`."""
    check(lambda x: function(x, 1)[0], [HOSTILE], gradients=False)
    check(lambda x: function(x, 0)[0], [HOSTILE], gradients=False)
    if function in (torch.cummax, torch.cummin):
        check(lambda x: function(x, 1)[1], [HOSTILE], gradients=False)


@pytest.mark.parametrize("right", [False, True])
def test_places_in_a_list(right):
    edges, x = torch.tensor([-1.0, 0.0, 0.0, 2.5, INF]), torch.tensor([[-INF, -1.0, 0.0], [2.5, INF, NAN]])
    check(lambda x, e: torch.bucketize(x, e, right=right), [x, edges], gradients=False)
    rows = torch.stack([edges, edges + 1])
    check(lambda x, e: torch.searchsorted(e, x, right=right), [x, rows], gradients=False)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("corners", [False, True])
def test_pictures_sampled_at_a_grid(padding, mode, corners):
    grid = random(2, 5, 4, 2, seed=3) * 1.5
    check(lambda x, g: F.grid_sample(x, g, mode, padding, corners), [random(2, 3, 6, 7), grid], rtol=1e-4, atol=1e-4)


def test_points_far_away_sample_nothing_and_points_nowhere_nan():
    grid = torch.tensor([[[[0.0, 0.0], [NAN, 0.5], [INF, 0.0], [-7.0, 7.0]]]])
    check(lambda x, g: F.grid_sample(x, g, align_corners=False), [random(1, 2, 4, 4), grid], gradients=False)


# -- layers ---------------------------------------------------------------------------------------------------------


class Quantized(nn.Module):
    """A vector-quantized autoencoder: the nearest entry of a code book, straight-through."""

    def __init__(self):
        super().__init__()
        self.encode, self.codes, self.decode = nn.Linear(8, 8), nn.Parameter(random(40, 8, seed=1)), nn.Linear(8, 8)

    def forward(self, x):
        z = self.encode(x)
        code = F.embedding(torch.cdist(z, self.codes).argmin(-1), self.codes)
        out = self.decode(z + (code - z).detach())
        return F.mse_loss(out, x) + F.mse_loss(code, z.detach()) + 0.25 * F.mse_loss(z, code.detach())


class Transformed(nn.Module):
    """A spatial transformer: the picture is turned by what is learnt of it."""

    def __init__(self):
        super().__init__()
        self.turn, self.head = nn.Linear(2 * 64, 6), nn.Linear(2 * 64, 1)
        nn.init.normal_(self.turn.weight, std=0.01, generator=torch.Generator().manual_seed(0))
        self.turn.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])

    def forward(self, x):
        x = x.view(-1, 2, 8, 8)
        grid = F.affine_grid(self.turn(x.flatten(1)).view(-1, 2, 3), x.shape, align_corners=False)
        return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1)).square().mean()


class Contrasted(nn.Module):
    """Two views of a batch; each row's own column is right, and both agree in few directions (Barlow twins)."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.mix = nn.Linear(8, 6), nn.Linear(8, 6), nn.Bilinear(6, 6, 4)

    def forward(self, x):
        a, b = F.normalize(self.left(x), dim=1), F.normalize(self.right(x), dim=1)
        scores, across = a @ b.T, a.T @ b
        off = across - torch.diag_embed(across.diagonal())
        return (1 - scores.diagonal()).square().mean() + off.square().sum() + self.mix(a, b).square().mean()


class Bounded(nn.Module):
    """Rows of a table that are used are kept in a ball."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8, max_norm=1.0)

    def forward(self, x):
        ids = (x.abs() * 3).long().clamp(max=9)
        return self.table(ids).mean(1).square().sum()


@pytest.mark.parametrize("model", [Quantized, Contrasted, Bounded, Transformed])
def test_layers_learn_what_the_host_learns(model):
    torch.manual_seed(0)
    ours = model()
    theirs = copy.deepcopy(ours)
    batches = [random(16, 128 if model is Transformed else 8, seed=seed) for seed in range(3)]
    with engine("trn1"):
        ours.to("neuron")
        step = neuron.compile_step(ours, torch.optim.SGD(ours.parameters(), lr=0.05), lambda m, x: m(x))
        got = [float(step(x.to("neuron"))) for x in batches]
    optimizer, expected = torch.optim.SGD(theirs.parameters(), lr=0.05), []
    for x in batches:
        optimizer.zero_grad()
        loss = theirs(x)
        loss.backward()
        optimizer.step()
        expected.append(float(loss.detach()))
    assert got == pytest.approx(expected, rel=1e-5)
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name].cpu(), value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 12, 2), (1, 12, 2), (3, 11, 2), (2, 13, 3), (4, 5, 3), (12, 13, 5)]
)
def test_strided_slices_and_what_is_written_to_them(start, stop, step):
    """Cells of the step that begin in the middle, and that end behind the tensor."""
    check(lambda x: x[:, start:stop:step] * 2, [random(3, 13, 2)])

    def written(x, y):
        x = x.clone()
        x[:, start:stop:step] = y
        return x

    check(written, [random(3, 13, 2), random(3, len(range(start, stop, step)), 2, seed=1)])


def by_neighbours(x, cos, sin):
    """torchtune's rotary positions."""
    even, odd = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)


def of_some_columns(x, cos, sin):
    """GPT-J's: neighbours in the first columns."""
    first, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    turned = torch.stack((-first[..., 1::2], first[..., ::2]), -1).flatten(-2)
    cos, sin = (v.repeat_interleave(2, -1) for v in (cos, sin))
    return torch.cat([first * cos + turned * sin, rest], -1)


@pytest.mark.parametrize("function", [by_neighbours, of_some_columns])
@pytest.mark.parametrize("size", [24, 96])
def test_neighbours_turn_together(function, size):
    width = size if function is by_neighbours else 16
    x = random(2, 5, 70, size)
    x[0, 0, 0, 3], x[1, 2, 3, 8], x[0, 1, 1, 5] = INF, NAN, -0.0
    angles = [random(70, width // 2, seed=seed) for seed in (1, 2)]
    check(function, [x, *angles], gradients=False)
    check(function, [random(2, 5, 70, size), *angles])

# SPDX-License-Identifier: Apache-2.0
"""Networks of the sciences: equivariant to rotations, graphs as sparse matrices; and reinforcement learning."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.zoo.models.base import Subject, zoo


class _EquivariantLayer(nn.Module):
    """A layer of EGNN (Satorras, Hoogeboom, Welling 2021): messages of distances, which move features and places."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.place = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h: Tensor, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        rows, cols = edges
        away = x[rows] - x[cols]
        squared = away.square().sum(1, keepdim=True)
        away = away / (squared.sqrt() + 1.0)
        message = self.edge(torch.cat([h[rows], h[cols], squared], 1))
        moved = torch.zeros_like(x).index_add_(0, rows, away * self.place(message))
        counts = torch.zeros_like(x[:, :1]).index_add_(0, rows, torch.ones_like(squared))
        gathered = torch.zeros_like(h).index_add_(0, rows, message)
        return h + self.node(torch.cat([h, gathered], 1)), x + moved / counts.clamp(min=1)


class _Docking(nn.Module):
    """A ligand's atoms and a receptor's find their places together; every atom sees all within a cutoff."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.kinds, self.layers = nn.Embedding(6, width), nn.ModuleList([_EquivariantLayer(width) for _ in range(2)])
        self.energy = nn.Linear(width, 1)

    def forward(self, kinds: Tensor, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        h = self.kinds(kinds)
        for layer in self.layers:
            h, x = layer(h, x, edges)
        return self.energy(h).sum(), x


@zoo
def equivariant_docking() -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.tensor([(i, j) for i in range(10) for j in range(10) if i != j]).T.contiguous()
        kinds, x = torch.randint(0, 6, (10,), generator=generator), torch.randn(10, 3, generator=generator)
        return kinds, x, edges, x + 0.1 * torch.randn(10, 3, generator=generator)

    def loss(net: nn.Module, kinds: Tensor, x: Tensor, edges: Tensor, target: Tensor) -> Tensor:
        energy, placed = net(kinds, x, edges)
        return F.mse_loss(placed, target) + 0.01 * energy.square()

    return Subject(_Docking(), batch, loss)


class _TensorProduct(nn.Module):
    """A convolution of e3nn over the edges of a point cloud: spherical harmonics, a tensor product, a sum by node."""

    def __init__(self) -> None:
        super().__init__()
        from e3nn import o3
        from e3nn.nn import FullyConnectedNet, Gate

        self.harmonics = o3.SphericalHarmonics(o3.Irreps.spherical_harmonics(2), True, "component")
        inner = Gate("8x0e", [F.silu], "4x0e", [torch.sigmoid], "4x1o")
        self.product = o3.FullyConnectedTensorProduct(
            "4x0e", self.harmonics.irreps_out, inner.irreps_in, shared_weights=False
        )
        self.radial = FullyConnectedNet([5, 16, self.product.weight_numel], F.silu)
        self.gate, self.out = inner, o3.Linear(inner.irreps_out, "1x0e + 1x1o")

    def forward(self, h: Tensor, x: Tensor, edges: Tensor) -> Tensor:
        from e3nn.math import soft_one_hot_linspace

        away = x[edges[1]] - x[edges[0]]
        harmonics = self.harmonics(away)
        lengths = soft_one_hot_linspace(
            away.norm(dim=1), start=0.0, end=4.0, number=5, basis="smooth_finite", cutoff=True
        )
        messages = self.product(h[edges[0]], harmonics, self.radial(lengths * 5**0.5))
        summed = torch.zeros(len(x), messages.shape[1], device=x.device, dtype=x.dtype)
        return self.out(self.gate(summed.index_add(0, edges[1], messages) / 3))


@zoo
def equivariant_e3nn() -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.tensor([(i, j) for i in range(6) for j in range(6) if i != j]).T.contiguous()
        h, x, y = (torch.randn(s, generator=generator) for s in ((6, 4), (6, 3), (6, 4)))
        return h, x, edges, y

    return Subject(_TensorProduct(), batch, lambda net, h, x, edges, y: F.mse_loss(net(h, x, edges), y))


class _SparseGraph(nn.Module):
    """A graph convolution as the product with an adjacency matrix of ones."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout, self.first, self.second = layout, nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        ones = torch.ones(edges.shape[1], device=x.device, dtype=x.dtype)
        adjacency = torch.sparse_coo_tensor(edges, ones, (12, 12))
        adjacency = adjacency.to_sparse_csr() if self.layout == "csr" else adjacency
        return torch.sparse.mm(adjacency, self.second(F.relu(torch.sparse.mm(adjacency, self.first(x)))))


def _sparse_graph(layout: str) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.randint(0, 12, (2, 30), generator=generator)
        return torch.randn(12, 8, generator=generator), edges, torch.randint(0, 3, (12,), generator=generator)

    return Subject(_SparseGraph(layout), batch, lambda net, x, edges, y: F.cross_entropy(net(x, edges), y))


@zoo
def graph_sparse_coo() -> Subject:
    """Products with a matrix in COO, made of the batch's edges in each step."""
    return _sparse_graph("coo")


@zoo
def graph_sparse_csr() -> Subject:
    """The same in CSR, converted in each step."""
    return _sparse_graph("csr")


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.actor(h), self.critic(h).squeeze(-1)


def cart_pole(actions: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """States [T, 4] and rewards [T] of a pole on a cart that is pushed left (0) or right (1)."""
    state = np.random.default_rng(seed).uniform(-0.05, 0.05, 4)
    states, rewards = [], []
    for action in actions:
        states.append(state.copy())
        _, speed, angle, turn = state
        push = (10.0 if action else -10.0) + 0.05 * turn**2 * np.sin(angle)
        pull = (9.8 * np.sin(angle) - np.cos(angle) * push / 1.1) / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        along = push / 1.1 - 0.05 * pull * np.cos(angle) / 1.1
        state = state + 0.02 * np.array([speed, along, turn, pull])
        rewards.append(1.0 if abs(state[2]) < 0.21 else 0.0)
    return np.array(states, np.float32), np.array(rewards, np.float32)


@zoo
def ppo_cart_pole() -> Subject:
    """PPO's clipped loss with entropy and value terms, on what a rollout in NumPy gathered."""

    def batch(seed: int) -> tuple[Tensor, ...]:
        actions = np.random.default_rng(seed).integers(0, 2, 32)
        states, rewards = cart_pole(actions, seed)
        returns = np.array([rewards[t:] @ 0.99 ** np.arange(32 - t) for t in range(32)], np.float32)
        gains = (returns - returns.mean()) / (returns.std() + 1e-8)
        old = np.full(32, np.log(0.5), np.float32)
        return tuple(map(torch.from_numpy, (states, actions, old, gains, returns)))

    def loss(net: nn.Module, states: Tensor, actions: Tensor, old: Tensor, gains: Tensor, returns: Tensor) -> Tensor:
        logits, values = net(states)
        chosen = torch.distributions.Categorical(logits=logits)
        ratio = (chosen.log_prob(actions) - old).exp()
        clipped = torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        return -clipped + 0.5 * F.mse_loss(values, returns) - 0.01 * chosen.entropy().mean()

    return Subject(_Policy(), batch, loss)

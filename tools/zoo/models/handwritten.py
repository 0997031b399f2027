# SPDX-License-Identifier: Apache-2.0
"""Models as people write them by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tools.zoo.models.base import Subject, classified, floats, images, tokens, zoo


class _Recommender(nn.Module):
    def __init__(self, bags: bool) -> None:
        super().__init__()
        kind = nn.EmbeddingBag if bags else nn.Embedding
        self.bags, self.tables = bags, nn.ModuleList([kind(50, 8) for _ in range(3)])
        self.bottom, self.top = nn.Linear(5, 8), nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        parts = [self.bottom(dense)]
        parts += [t(ids[:, i]) if self.bags else t(ids[:, i]).sum(1) for i, t in enumerate(self.tables)]
        stacked = torch.stack(parts, 1)
        pairs = stacked @ stacked.transpose(1, 2)
        rows, cols = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([parts[0], pairs[:, rows, cols]], 1)).squeeze(1)


def _recommender(bags: bool) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        dense, ids = torch.randn(6, 5, generator=generator), torch.randint(0, 50, (6, 3, 4), generator=generator)
        return dense, ids, torch.rand(6, generator=generator).round()

    return Subject(
        _Recommender(bags), batch, lambda net, x, ids, y: F.binary_cross_entropy_with_logits(net(x, ids), y)
    )


@zoo
def dlrm() -> Subject:
    return _recommender(False)


@zoo
def dlrm_bags() -> Subject:
    return _recommender(True)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(32, 16), kind(16, 24, batch_first=True, **options)
        self.head = nn.Linear(48 if options.get("bidirectional") else 24, 32)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.cell(self.table(ids))[0])


def _recurrent(kind: type[nn.RNNBase], **options: Any) -> Subject:
    return Subject(
        _Recurrent(kind, **options),
        tokens(32, 3, 9),
        lambda net, ids: F.cross_entropy(net(ids[:, :-1]).mT, ids[:, 1:]),
    )


@zoo
def lstm() -> Subject:
    return _recurrent(nn.LSTM)


@zoo
def lstm_two_layers_both_ways() -> Subject:
    return _recurrent(nn.LSTM, num_layers=2, bidirectional=True)


@zoo
def lstm_packed() -> Subject:
    """Sequences of several lengths, packed on the host."""

    class Packed(_Recurrent):
        def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, True, enforce_sorted=False)
            return self.head(self.cell(packed)[1][0][-1])

    def loss(net: nn.Module, ids: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(net(ids, torch.tensor([7, 4, 5])), labels)

    def batch(seed: int) -> tuple[Tensor, ...]:
        return (*tokens(32, 3, 7)(seed), *tokens(32, 3)(seed + 100))

    return Subject(Packed(nn.LSTM), batch, loss)


@zoo
def gru() -> Subject:
    return _recurrent(nn.GRU)


@zoo
def rnn() -> Subject:
    return _recurrent(nn.RNN)


class _Graph(nn.Module):
    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce, self.first, self.second = reduce, nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            h = layer(x)
            messages = h[edges[0]]
            if self.reduce == "add":
                x = h + torch.zeros_like(h).index_add(0, edges[1], messages)
            else:
                where = edges[1][:, None].expand_as(messages)
                x = h + torch.zeros_like(h).scatter_reduce(0, where, messages, self.reduce, include_self=False)
            x = F.relu(x) if layer is self.first else x
        return x


def _graph(reduce: str) -> Subject:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        edges = torch.randint(0, 12, (2, 30), generator=generator)
        return torch.randn(12, 8, generator=generator), edges, torch.randint(0, 3, (12,), generator=generator)

    return Subject(_Graph(reduce), batch, lambda net, x, edges, y: F.cross_entropy(net(x, edges), y))


@zoo
def graph_index_add() -> Subject:
    return _graph("add")


@zoo
def graph_scatter_mean() -> Subject:
    return _graph("mean")


@zoo
def graph_scatter_max() -> Subject:
    return _graph("amax")


@zoo
def transformer_with_masks() -> Subject:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)

        def forward(self, x: Tensor, y: Tensor, hidden: Tensor) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(y.shape[1], device=y.device)
            return self.inner(x, y, tgt_mask=mask, src_key_padding_mask=hidden)

    def batch(seed: int) -> tuple[Tensor, ...]:
        x, y = floats((2, 7, 16), (2, 5, 16))(seed)
        return x, y, torch.tensor([[False] * 7, [False] * 4 + [True] * 3])

    return Subject(Both(), batch, lambda net, x, y, hidden: net(x, y, hidden).square().mean())


@zoo
def batch_normed_mlp() -> Subject:
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))
    return Subject(net, floats((12, 8), (12, 3)), lambda model, x, y: F.mse_loss(model(x), y))


@zoo
def small_convolutional_net() -> Subject:
    """PyTorch's MNIST example."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(576, 10),
    )
    return Subject(net, images(16), classified)


class _Routed(nn.Module):
    """Experts with room for so many tokens each (Switch): what finds no room passes by."""

    def __init__(self, width: int = 16, experts: int = 4, room: float = 1.25) -> None:
        super().__init__()
        self.gate, self.experts, self.room = nn.Linear(width, experts, bias=False), experts, room
        self.up = nn.Parameter(0.1 * torch.randn(experts, width, 2 * width))
        self.down = nn.Parameter(0.1 * torch.randn(experts, 2 * width, width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        count = len(x)
        capacity = int(self.room * count / self.experts)
        shares = self.gate(x).softmax(-1)
        share, chosen = shares.max(-1)
        picked = F.one_hot(chosen, self.experts).to(x.dtype)
        place = (picked.cumsum(0) - 1) * picked
        kept = picked * (place < capacity)
        slots = F.one_hot(place.sum(-1).long().clamp(max=capacity - 1), capacity).to(x.dtype)
        dispatch = kept[:, :, None] * slots[:, None, :]
        inside = torch.einsum("tec,tw->ecw", dispatch, x)
        outside = F.gelu(inside @ self.up) @ self.down
        balance = self.experts * (picked.mean(0) * shares.mean(0)).sum()
        return x + torch.einsum("tec,ecw->tw", dispatch * share[:, None, None], outside), balance


@zoo
def experts_with_capacity() -> Subject:
    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out, balance = net(x)
        return F.mse_loss(out, y) + 0.01 * balance

    return Subject(_Routed(), floats((24, 16), (24, 16)), loss)

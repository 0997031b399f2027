# SPDX-License-Identifier: Apache-2.0
"""The U-Net of a latent diffusion model (Rombach et al. 2022) in PyTorch, the reference of `fleet.models.diffusion`.

The numbers of parameters are those of diffusers' UNet2DConditionModel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

PERIOD = 10000.0  # of the sinusoids that say which step of noise it is


class Residual(nn.Module):
    """Two convolutions around which the input goes; between them the time of a sample is added."""

    def __init__(self, into: int, out: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, into), nn.Conv2d(into, out, 3, padding=1)
        self.time, self.norm2 = nn.Linear(time, out), nn.GroupNorm(groups, out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.around = nn.Conv2d(into, out, 1) if into != out else None

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """[N, out, H, W]."""
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(functional.silu(time))[:, :, None, None]
        y = self.conv2(functional.silu(self.norm2(y)))
        return y + (x if self.around is None else self.around(x))


class Attention(nn.Module):
    """Attention of `heads`, to `width` wide rows, which may be its own."""

    def __init__(self, size: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.out = nn.Linear(size, size, bias=False), nn.Linear(size, size)
        self.key, self.value = nn.Linear(width, size, bias=False), nn.Linear(width, size, bias=False)

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """[N, T, size]."""
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.query(x), self.key(rows), self.value(rows))
        )
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Pixels attend to pixels and to the text, then a gated network."""

    def __init__(self, size: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.own = nn.LayerNorm(size), Attention(size, size, heads)
        self.norm2, self.cross = nn.LayerNorm(size), Attention(size, text, heads)
        self.norm3, self.up, self.down = nn.LayerNorm(size), nn.Linear(size, 8 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """[N, T, size]."""
        y = self.norm1(x)
        x = x + self.own(y, y)
        x = x + self.cross(self.norm2(x), text)
        y, gate = self.up(self.norm3(x)).chunk(2, -1)
        return x + self.down(y * functional.gelu(gate))


class Transformer(nn.Module):
    """Layers between two convolutions of single pixels, around which the input goes."""

    def __init__(self, size: int, text: int, heads: int, layers: int, groups: int) -> None:
        super().__init__()
        self.norm, self.into = nn.GroupNorm(groups, size), nn.Conv2d(size, size, 1)
        self.layers = nn.ModuleList(Layer(size, text, heads) for _ in range(layers))
        self.out = nn.Conv2d(size, size, 1)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """[N, size, H, W]."""
        y = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        for layer in self.layers:
            y = layer(y, text)
        return x + self.out(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class Unit(nn.Module):
    """A residual block, and attention after it where there is some."""

    def __init__(self, into: int, out: int, time: int, text: int, heads: int, layers: int, groups: int) -> None:
        super().__init__()
        self.residual = Residual(into, out, time, groups)
        self.attention = Transformer(out, text, heads, layers, groups) if heads else None

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        """[N, out, H, W]."""
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, text)


class UNet(nn.Module):
    """Levels down, a middle, levels up, each of which takes what the same level down gave.

    heads: of each level's attention, 0 where it has none; layers: of each level's transformers. pooled: numbers that
    describe an image beside its text, 0 for none. again: only what enters a unit is kept for the way back.
    """

    def __init__(
        self,
        widths: Sequence[int] = (320, 640, 1280, 1280),
        heads: Sequence[int] = (8, 8, 8, 0),
        middle: int = 8,
        layers: Sequence[int] = (1, 1, 1, 1),
        depth: int = 2,
        text: int = 768,
        pooled: int = 0,
        groups: int = 32,
        colours: int = 4,
        again: bool = False,
    ) -> None:
        super().__init__()
        self.first, self.time, self.again = widths[0], 4 * widths[0], again
        self.depth, self.levels = depth, len(widths)
        self.described = self._perceptron(self.first)
        self.pooled = self._perceptron(pooled) if pooled else None
        self.into = nn.Conv2d(colours, self.first, 3, padding=1)
        self.units, self.less, self.more = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()

        def unit(into: int, level: int, count: int) -> int:
            self.units.append(Unit(into, widths[level], self.time, text, count, layers[level], groups))
            return widths[level]

        self._levels(unit, heads, middle)
        self.norm, self.out = nn.GroupNorm(groups, self.first), nn.Conv2d(self.first, colours, 3, padding=1)

    def _levels(self, unit: Callable[[int, int, int], int], heads: Sequence[int], middle: int) -> None:
        """Units, in the order in which they are used. unit: makes one of what goes in, a level and heads."""
        into, kept = self.first, [self.first]
        for level in range(self.levels):
            for _ in range(self.depth):
                into = unit(into, level, heads[level])
                kept.append(into)
            if level + 1 < self.levels:
                self.less.append(nn.Conv2d(into, into, 3, 2, 1))
                kept.append(into)
        for count in (middle, 0):
            into = unit(into, self.levels - 1, count)
        for level in reversed(range(self.levels)):
            for _ in range(self.depth + 1):
                into = unit(into + kept.pop(), level, heads[level])
            if level:
                self.more.append(nn.Conv2d(into, into, 3, padding=1))

    def _perceptron(self, width: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, self.time), nn.SiLU(), nn.Linear(self.time, self.time))

    def forward(self, x: Tensor, when: Tensor, text: Tensor, *pooled: Tensor) -> Tensor:
        """The noise in latents [N, colours, H, W] of which `when` [N, 1] steps were added."""
        time = self.described(self._waves(when).to(x.dtype))
        if self.pooled is not None:
            time = time + self.pooled(*pooled)
        units = iter(self.units)

        def unit(x: Tensor) -> Tensor:
            made = next(units)
            return checkpoint(made, x, time, text, use_reentrant=False) if self.again else made(x, time, text)

        x = self.into(x)
        kept = [x]
        for level in range(self.levels):
            for _ in range(self.depth):
                x = unit(x)
                kept.append(x)
            if level + 1 < self.levels:
                x = self.less[level](x)
                kept.append(x)
        x = unit(unit(x))
        for level in range(self.levels):
            for _ in range(self.depth + 1):
                x = unit(torch.cat([x, kept.pop()], 1))
            if level + 1 < self.levels:
                x = self.more[level](functional.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.out(functional.silu(self.norm(x)))

    def _waves(self, when: Tensor) -> Tensor:
        """Sinusoids of times, [N, first]."""
        half = self.first // 2
        rates = torch.exp(torch.arange(half, device=when.device) * (-math.log(PERIOD) / half))
        angles = when * rates
        return torch.cat([angles.cos(), angles.sin()], -1)

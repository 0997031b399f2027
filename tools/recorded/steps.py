# SPDX-License-Identifier: Apache-2.0
"""Steps of drawn programs: views, writes, copies, choices, reductions, and whoever asks for values in between."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tools.recorded.world import SHAPES, World, any_dtype, filled, kept

Step = Callable[[World, Random], None]
STEPS: list[tuple[Step, int]] = []


def step(weight: int) -> Callable[[Step], Step]:
    """Register what is drawn with this weight."""

    def register(function: Step) -> Step:
        STEPS.append((function, weight))
        return function

    return register


# -- views ----------------------------------------------------------------------------------------------------------


@step(14)
def view(w: World, draw: Random) -> None:
    x = w.any(draw)
    w.put(any_view(draw, x))


def any_view(draw: Random, x: Tensor) -> Tensor:
    """A view of `x`, of any kind that it has."""
    choices: list[Callable[[], Tensor]] = [
        lambda: x.detach(),
        lambda: x.data,
        lambda: x.unsqueeze(draw.randint(0, x.dim())),
        lambda: x.squeeze(),
        lambda: x.reshape(-1),
        lambda: x.expand(2, *x.shape),
        lambda: x.view_as(x),
        lambda: as_strided(draw, x),
        lambda: x.view(torch.int32) if x.dtype is torch.float32 else x[...],
    ]
    if x.dim():
        d = draw.randrange(x.dim())
        n = x.shape[d]
        choices += [
            lambda: x.narrow(d, min(1, n), max(0, n - 1)),
            lambda: x[..., ::2],
            lambda: x[draw.randint(0, max(0, n - 1)) :] if d == 0 else x.transpose(0, d),
            lambda: x.select(d, draw.randint(-1, 0)),
            lambda: x.chunk(2, d)[0],
            lambda: x.unfold(d, min(2, n), 1),
            lambda: x.expand(*([-1] * x.dim())),
            lambda: draw.choice(x.split(2, d)),
        ]
    if x.dim() >= 2:
        choices += [lambda: x.transpose(0, 1), lambda: x.diagonal(), lambda: x.mT, lambda: x.movedim(0, -1)]
        choices += [lambda: x[:, None, 1:], lambda: x.flatten(0, 1)]
    return draw.choice(choices)()


def as_strided(draw: Random, x: Tensor) -> Tensor:
    """Anything within the memory of `x`."""
    room = x.untyped_storage().nbytes() // x.element_size()
    shape = [draw.randint(1, 3) for _ in range(draw.randint(0, 3))]
    strides = [draw.choice((0, 1, 1, 2, 3, 4)) for _ in shape]
    extent = 1 + sum((n - 1) * s for n, s in zip(shape, strides))
    if extent > room:
        return x[...]
    return x.as_strided(shape, strides, draw.randint(0, room - extent))


# -- values ---------------------------------------------------------------------------------------------------------


@step(12)
def elementwise(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = w.like(draw, x)
    two = [torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum]
    one = [torch.neg, torch.abs, torch.sign, torch.relu, torch.square]
    result = draw.choice(two)(x, y) if draw.random() < 0.6 else draw.choice(one)(x)
    w.put(kept(result))


@step(5)
def with_numbers(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    n = draw.choice((2, -1, 0, 3, 1))
    number: Any = draw.choice((n, float(n), torch.tensor(n), torch.tensor(float(n)), torch.tensor(float(n)).double()))
    result = draw.choice((torch.add, torch.sub, torch.mul, torch.rsub))(x, number) if draw.random() < 0.8 else x + n
    w.say(str(result.dtype))
    w.put(kept(result))


@step(3)
def between_formats(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fib")
    to = any_dtype(draw)
    if to in (torch.uint8, torch.int8) and x.dtype is not torch.bool:
        x = x.clamp(0, 9)
    w.put(x.to(to))


@step(4)
def compared(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = w.like(draw, x)
    mask = draw.choice((torch.gt, torch.le, torch.eq, torch.ne))(x, y)
    w.put(mask, torch.where(mask, x, y), x.masked_fill(mask, 5))


@step(4)
def logical(w: World, draw: Random) -> None:
    x = w.any(draw, kind="b")
    y = w.like(draw, x)
    w.put(draw.choice((torch.logical_and, torch.logical_or, torch.logical_xor, torch.bitwise_and))(x, y), ~x)


@step(4)
def bits(w: World, draw: Random) -> None:
    x = w.any(draw, kind="i")
    y = w.like(draw, x)
    w.put(kept(draw.choice((torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor))(x, y)), kept(x << 1), x >> 1)


@step(3)
def divided(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = w.like(draw, x).abs() + 1
    w.put(kept(draw.choice((torch.remainder, torch.fmod, torch.floor_divide))(x, y)))
    w.say(x / y, exact=False)


@step(6)
def reduced(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi", least=1, numel=1)
    d = draw.randrange(x.dim())
    result = draw.choice(
        (
            lambda: x.sum(d),
            lambda: x.sum(),
            lambda: x.amax(d, keepdim=True),
            lambda: x.amin(),
            lambda: x.max(d).values,
            lambda: x.cumsum(d),
            lambda: (x > 0).any(d),
            lambda: (x > 0).all(),
            lambda: x.count_nonzero(d),
            lambda: x.sum(d, dtype=torch.float32),
            lambda: x.clamp(-1, 1).prod(d),
            lambda: x.sort(d).values,
            lambda: x.topk(1, d).values,
            lambda: x.min(d, keepdim=True)[0],
            lambda: x.flip(d),
        )
    )()
    w.put(kept(result))


@step(4)
def rounded(w: World, draw: Random) -> None:
    """What is not exact is said at once, and goes no further."""
    x = w.any(draw, kind="f", least=1, numel=1)
    y = x.float()
    w.say(
        draw.choice(
            (
                lambda: torch.tanh(y),
                lambda: torch.sigmoid(y),
                lambda: torch.softmax(y, -1),
                lambda: F.gelu(y),
                lambda: (y.abs() + 1).log(),
                lambda: (y.abs() + 1).rsqrt(),
                lambda: y.mean(-1),
                lambda: y.norm(),
                lambda: torch.exp(y.clamp(-8, 8)),
                lambda: F.layer_norm(y, y.shape[-1:]),
                lambda: y.std(-1, correction=0),
                lambda: torch.logsumexp(y, -1),
                lambda: F.silu(x),
                lambda: x * 0.1,
            )
        )(),
        exact=False,
    )


@step(4)
def products(w: World, draw: Random) -> None:
    x = w.any(draw, kind="f", dims=2, dtype=torch.float32)
    y = w.new(draw, (x.shape[1], 3), x.dtype)
    b = w.new(draw, (3,), x.dtype)
    w.put(kept(draw.choice((lambda: x @ y, lambda: torch.addmm(b, x, y), lambda: F.linear(x, y.t(), b)))()))


@step(4)
def joined(w: World, draw: Random) -> None:
    x = w.any(draw, least=1)
    y = w.any(draw, shape=tuple(x.shape))
    d = draw.randrange(x.dim())
    w.put(
        draw.choice((lambda: torch.cat([x, y, x], d), lambda: torch.stack([x, y], d), lambda: torch.hstack([x, y])))()
    )


@step(4)
def arranged(w: World, draw: Random) -> None:
    x = w.any(draw, least=1)
    d = draw.randrange(x.dim())
    w.put(
        draw.choice(
            (
                lambda: x.roll(1, d),
                lambda: x.flip(d),
                lambda: x.repeat(2, *[1] * (x.dim() - 1)),
                lambda: x.clone(),
                lambda: x.contiguous(),
                lambda: F.pad(x, (1, 2), value=3),
                lambda: x.repeat_interleave(2, d),
                lambda: x.tile(2),
                lambda: torch.tril(x) if x.dim() > 1 else x.clone(),
                lambda: x.rot90() if x.dim() > 1 else x * 1,
                lambda: x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.clone(),
                lambda: torch.empty_like(x).copy_(x),
            )
        )()
    )


@step(3)
def made(w: World, draw: Random) -> None:
    on = {"device": w.device}
    w.put(
        draw.choice(
            (
                lambda: torch.arange(5, **on),
                lambda: torch.arange(0, 8, 2, dtype=torch.float32, **on),
                lambda: torch.zeros(3, 4, **on),
                lambda: torch.full((4,), 7, **on),
                lambda: torch.ones((), **on),
                lambda: torch.eye(4, **on),
                lambda: torch.linspace(0, 4, 5, **on),
                lambda: torch.tensor([1, 2, 3], **on),
                lambda: torch.zeros(2, 3, dtype=torch.bool, **on),
                lambda: torch.tril_indices(3, 3, **on),
                lambda: torch.full((3,), 2.0, dtype=torch.bfloat16, **on),
                lambda: torch.scalar_tensor(3, **on),
            )
        )()
    )


# -- writes ---------------------------------------------------------------------------------------------------------


@step(14)
def written(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = w.like(draw, x)
    n = draw.choice((2, -1, 0, 1))
    draw.choice(
        (
            lambda: x.add_(y),
            lambda: x.sub_(y, alpha=2),
            lambda: x.mul_(y),
            lambda: x.zero_(),
            lambda: x.fill_(n),
            lambda: x.neg_(),
            lambda: x.add_(n),
            lambda: x.mul_(n),
            lambda: x.copy_(y),
            lambda: x.relu_(),
            lambda: x.lerp_(y.expand(x.shape), 2.0) if x.is_floating_point() else None,
            lambda: x.addcmul_(y, y, value=n),
            lambda: x.masked_fill_(y > 0, n),
            lambda: x.clamp_(min=0),
            lambda: x.abs_(),
            lambda: x.sign_(),
            lambda: x.triu_(),
            lambda: x.fill_diagonal_(n),
            lambda: x.add_(x),
            lambda: x.cumsum_(0),
            lambda: x.fill_(y.sum().to(x.dtype)),
            lambda: x.sub_(y).abs_(),
        )
    )()
    x.clamp_(-64, 64)


@step(6)
def assigned(w: World, draw: Random) -> None:
    x = w.any(draw, least=1, numel=1)
    value: Any = draw.choice((3, x.reshape(-1)[0], x.reshape(-1)[:1].clone(), filled(draw, (), x.dtype)))
    n = x.shape[0]
    at: Any = draw.choice(
        (
            0,
            -1,
            slice(1, None),
            slice(None, None, 2),
            ...,
            [0],
            torch.tensor([n - 1]),
            (Ellipsis, 0),
            (slice(None), None),
            torch.tensor([True] + [False] * (n - 1)),
            torch.tensor([0]).to(w.device),
            torch.tensor([True] * n).to(w.device),
        )
    )
    x[at] = value


@step(5)
def overlapping(w: World, draw: Random) -> None:
    """Writes from the memory that they write to: refused as PyTorch refuses them, or in its order."""
    x = w.any(draw, kind="fi", least=1, numel=2)
    if x.shape[0] < 2:
        x = x.reshape(-1)
    m = min(x.shape)
    draw.choice(
        (
            lambda: x[1:].copy_(x[:-1]),
            lambda: x[:-1].add_(x[1:]),
            lambda: x[0].copy_(x[-1]),
            lambda: x[1:].sub_(x[:1]),
            lambda: x.copy_(x.flip(0)),
            lambda: x[..., :m].add_(x[..., -m:]),
            lambda: x.add_(x.mT) if x.dim() > 1 else None,
            lambda: x.t().copy_(x) if x.dim() == 2 else None,
            lambda: x[::2].copy_(x[1::2]) if x.shape[0] % 2 == 0 else None,
            lambda: x.expand(3, *x.shape).add_(1),
            lambda: x.copy_(x),
            lambda: x[1:, 1:].copy_(x[:-1, 1:]),
            lambda: torch.add(x[1:], 1, out=x[:-1]),
            lambda: x.mul_(x[0]),
            lambda: torch.cumsum(x, 0, out=x),
            lambda: torch.sub(x, x.flip(0), out=x),
            lambda: torch._foreach_add_([x, x], 1),
            lambda: torch._foreach_add_([x[:1], x[1:2]], [x[1:2], x[:1]]),
        )
    )()
    x.clamp_(-64, 64)


@step(6)
def scattered(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi", least=1, numel=1)
    d = draw.randrange(x.dim())
    n = x.shape[d]
    order = torch.tensor(draw.sample(range(n), max(1, n // 2))).to(w.device)
    twice = torch.tensor([draw.randrange(n) for _ in range(3)]).to(w.device)
    source = w.new(draw, (*x.shape[:d], len(order), *x.shape[d + 1 :]), x.dtype)
    many = w.new(draw, (*x.shape[:d], 3, *x.shape[d + 1 :]), x.dtype)
    whole = order.reshape([-1 if k == d else 1 for k in range(x.dim())]).expand(source.shape)
    result = draw.choice(
        (
            lambda: x.index_copy_(d, order, source),
            lambda: x.index_add_(d, twice, many),
            lambda: x.index_fill_(d, order, 4),
            lambda: x.scatter_(d, whole, source),
            lambda: x.scatter_add_(d, whole, source),
            lambda: x.index_select(d, twice),
            lambda: x.gather(d, whole),
            lambda: x.scatter(d, whole, 2),
            lambda: x.take_along_dim(whole, d),
            lambda: x.index_put_((order,), source) if d == 0 else x.index_select(d, order),
            lambda: x.index_put_((twice,), many, accumulate=True) if d == 0 else x.index_add(d, twice, many),
            lambda: x.put_(order, source.reshape(-1)[: len(order)]),
            lambda: x.take(order),
            lambda: x.scatter_reduce_(d, whole, source, "amax"),
            lambda: x[order] if d == 0 else x[..., twice % x.shape[-1]],
            lambda: x.masked_scatter_(x > 0, x.clone()),
            lambda: x.index_add_(d, twice, many, alpha=2),
        )
    )()
    w.put(kept(result))


@step(5)
def into_given(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = w.like(draw, x)
    shape = torch.broadcast_shapes(x.shape, y.shape)
    out = draw.choice(
        (
            lambda: torch.empty(0, dtype=x.dtype, device=w.device),
            lambda: torch.empty(shape, dtype=x.dtype, device=w.device),
            lambda: w.any(draw, shape=tuple(shape)),
            lambda: torch.zeros((*shape, 2), dtype=x.dtype, device=w.device)[..., 0],
            lambda: torch.empty(3, 5, dtype=x.dtype, device=w.device),
            lambda: torch.empty(shape, dtype=torch.float32, device=w.device),
            lambda: x,
        )
    )()
    w.put(draw.choice((torch.add, torch.mul, torch.maximum))(x, y, out=out).clamp_(-64, 64))


@step(4)
def lists(w: World, draw: Random) -> None:
    xs = [t for t in w.pool if t.dtype is torch.float32 and not _shares(t, w.pool)][:3]
    if not xs:
        return
    ys = [w.new(draw, tuple(x.shape), x.dtype) for x in xs]
    n = float(draw.randint(-2, 2))
    draw.choice(
        (
            lambda: torch._foreach_add_(xs, ys, alpha=n),
            lambda: torch._foreach_mul_(xs, n),
            lambda: torch._foreach_copy_(xs, ys),
            lambda: torch._foreach_addcmul_(xs, ys, ys, n),
            lambda: torch._foreach_lerp_(xs, ys, 2.0),
            lambda: torch._foreach_zero_(xs),
            lambda: torch._foreach_neg_(xs),
            lambda: w.put(*torch._foreach_sub(xs, ys)),
            lambda: torch._foreach_mul_(xs, ys),
            lambda: torch._foreach_mul_(xs, torch.tensor(n)),
            lambda: torch._foreach_add_(xs, [n] * len(xs)),
            lambda: torch._foreach_clamp_min_(xs, n),
            lambda: torch._foreach_maximum_(xs, ys),
        )
    )()
    torch._foreach_clamp_max_(xs, 64.0)
    torch._foreach_clamp_min_(xs, -64.0)


def _shares(t: Tensor, pool: list[Tensor]) -> bool:
    return sum(t.untyped_storage()._cdata == o.untyped_storage()._cdata for o in pool) > 1 or 0 in t.stride()


# -- memory ---------------------------------------------------------------------------------------------------------


@step(3)
def replaced(w: World, draw: Random) -> None:
    """Other memory for the same tensor."""
    x = w.any(draw)
    y = w.any(draw, dtype=x.dtype)
    draw.choice(
        (
            lambda: setattr(x, "data", y),
            lambda: x.set_(y),
            lambda: setattr(x, "data", y.clone()),
            lambda: x.set_(y.clone()),
            lambda: x.resize_(x.numel() // 2),
            lambda: x.unsqueeze_(0),
            lambda: x.t_() if x.dim() == 2 else x.squeeze_(),
            lambda: x.resize_as_(y) if y.numel() <= x.numel() else None,
            lambda: x.set_(y.untyped_storage(), 0, (1,), (1,)) if y.numel() else None,
            lambda: torch.utils.swap_tensors(x, y) if x is not y else None,
        )
    )()


@step(2)
def grown(w: World, draw: Random) -> None:
    """What is new has no values until somebody writes it."""
    x = w.any(draw, dims=1, numel=1)
    n = x.numel()
    x = x.clone()
    x.resize_(n + 3)
    x[n:] = 1
    w.put(x)


@step(4)
def let_go(w: World, draw: Random) -> None:
    for _ in range(draw.randint(1, 3)):
        if len(w.pool) > 3:
            w.pool.pop(draw.randrange(len(w.pool)))


@step(6)
def fresh(w: World, draw: Random) -> None:
    w.put(w.new(draw))


@step(2)
def exchanged(w: World, draw: Random) -> None:
    """Two tensors take each other's values."""
    x = w.any(draw, numel=1)
    y = w.any(draw, shape=tuple(x.shape), dtype=x.dtype)
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


# -- who asks -------------------------------------------------------------------------------------------------------


@step(8)
def asked(w: World, draw: Random) -> None:
    w.say(w.any(draw))


@step(3)
def decided(w: World, draw: Random) -> None:
    """What comes next hangs on a value."""
    x = w.any(draw, kind="fi", numel=1)
    if x.sum().item() > 0:
        x.zero_()
    elif bool((x == 0).all()):
        x.add_(2)
    else:
        w.say(x.max().item())
    w.say(x.tolist())


@step(4)
def from_host(w: World, draw: Random) -> None:
    x = w.any(draw)
    y = filled(draw, tuple(x.shape), draw.choice((x.dtype, torch.float32, torch.int64)))
    x.copy_(y, non_blocking=draw.random() < 0.5)
    y.zero_()


@step(4)
def to_host(w: World, draw: Random) -> None:
    x = w.any(draw)
    there = draw.choice((x.cpu, lambda: x.to("cpu", torch.float32), lambda: torch.empty(x.shape).copy_(x)))()
    w.say(there)
    if w.device != "cpu":
        there.zero_()
    w.say(there.numpy().shape)


@step(2)
def counted(w: World, draw: Random) -> None:
    """How much comes out hangs on values."""
    x = w.any(draw, kind="fi", least=1)
    w.put(
        draw.choice(
            (
                lambda: x[x > 0],
                lambda: x.nonzero(),
                lambda: x.unique(),
                lambda: torch.masked_select(x, x == 0),
                lambda: torch.where(x > 0)[0],
                lambda: x.reshape(-1).abs().long().bincount(),
                lambda: torch.argwhere(x),
            )
        )()
    )


@step(2)
def random(w: World, draw: Random) -> None:
    on = {"device": w.device}
    if draw.random() < 0.5:
        torch.manual_seed(draw.randint(0, 99))
    state = torch.get_rng_state()
    x = w.any(draw, kind="f", numel=1)
    w.put(
        draw.choice(
            (
                lambda: torch.randint(0, 9, (3, 4), **on),
                lambda: torch.randperm(6, **on),
                lambda: (torch.rand(5, **on) > 0.5).float(),
                lambda: F.dropout(x.float(), 0.5).clamp(-64, 64),
                lambda: torch.bernoulli(torch.full((4,), 0.5, **on)),
                lambda: x.bernoulli_(0.5),
                lambda: (torch.randn(4, 4, **on) > 0).long(),
                lambda: x.random_(0, 5),
                lambda: F.dropout(x, 0.5, training=False),
                lambda: torch.rand_like(x).lt(0.3),
                lambda: F.dropout1d(x.float().reshape(1, 1, -1)).clamp(-64, 64),
                lambda: x.clone().uniform_().gt(0.5),
                lambda: torch.multinomial(torch.ones(4, **on), 2),
                lambda: x.clone().normal_().gt(0),
            )
        )()
    )
    if draw.random() < 0.3:
        torch.set_rng_state(state)


@step(3)
def wrong(w: World, draw: Random) -> None:
    """What PyTorch refuses, and what was recorded before and after is right."""
    x = w.any(draw, least=1, numel=2)
    y = x + 1 if x.dtype is not torch.bool else ~x
    w.put(y)
    draw.choice(
        (
            lambda: x @ torch.ones(99, 99, device=w.device),
            lambda: x + torch.ones(97, device=w.device),
            lambda: torch.zeros(3, dtype=torch.int64, device=w.device).add_(0.5),
            lambda: x[x.shape[0] + 3],
            lambda: x.view(-1, 97),
            lambda: torch.cat([x, torch.ones(1, 1, 1, 1, 1, device=w.device)]),
            lambda: x.sum(9),
            lambda: x.expand(5, *x.shape[1:-1], 99),
            lambda: torch.ones(3, device=w.device).unsqueeze(1).expand(3, 4).add_(1),
            lambda: x.item(),
            lambda: torch.empty(3, dtype=torch.int64, device=w.device).copy_(torch.ones(4, device=w.device)),
        )
    )()


SIZES = SHAPES

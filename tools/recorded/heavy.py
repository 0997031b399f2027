# SPDX-License-Identifier: Apache-2.0
"""Steps of drawn programs that are small programs themselves: gradients, files, threads, arrays over memory."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
from random import Random
from typing import Any

import torch
from torch import Tensor

from tools.recorded.steps import any_view, step
from tools.recorded.world import World, kept


@step(5)
def gradients(w: World, draw: Random) -> None:
    x = w.new(draw, (3, 4), torch.float32).requires_grad_()
    m = w.new(draw, (4, 4), torch.float32).requires_grad_()
    heard: list[Tensor] = []
    if draw.random() < 0.5:
        x.register_hook(lambda g: heard.append(g) or g * 2)
    if draw.random() < 0.5:
        m.register_post_accumulate_grad_hook(lambda p: p.grad.add_(1))
    y = x @ m
    z = y.clone()
    z[0].mul_(2)
    z.add_(x)
    loss = (z * z.detach().sign()).sum() + x.relu()[:, 1:].sum() + (x * m[:3]).sum()
    retain = draw.random() < 0.4
    loss.backward(retain_graph=retain)
    if retain:
        x.grad.zero_()
        loss.backward()
    assert x.grad is not None
    assert m.grad is not None
    w.say([loss, x.grad, m.grad, *heard])
    w.put(kept(x.grad), kept(m.grad.detach()))


@step(3)
def gradients_of_gradients(w: World, draw: Random) -> None:
    x = w.new(draw, (4,), torch.float32).requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * x.detach()).sum(), x)
    w.say([g, h])


@step(2)
def transforms(w: World, draw: Random) -> None:
    x = w.new(draw, (3, 4), torch.float32)

    def f(v: Tensor) -> Tensor:
        return (v * v * v[0]).sum()

    w.say(
        [
            torch.func.grad(f)(x[0]),
            torch.func.vmap(torch.func.grad(f))(x),
            torch.func.jvp(f, (x[0],), (x[1],))[1],
            torch.func.jacrev(lambda v: v * v)(x[0]),
            torch.func.vmap(lambda v: v.sum() + v)(x),
            torch.func.hessian(f)(x[0]),
            torch.func.vmap(torch.dot)(x, x),
        ]
    )


@step(3)
def saved(w: World, draw: Random) -> None:
    x = w.any(draw)
    y = x + 1 if x.dtype is not torch.bool else ~x
    v = any_view(draw, y)
    file = io.BytesIO()
    torch.save([y, v], file)
    file.seek(0)
    a, b = torch.load(file)
    w.put(a, b)
    w.put(draw.choice((lambda: copy.deepcopy(y), lambda: pickle.loads(pickle.dumps(y)), lambda: copy.copy(y)))())
    two: Any = copy.deepcopy([y, v])
    if y.dtype is not torch.bool and not y.shape and y.numel():
        two[0].add_(1)
    w.say(two)


@step(3)
def array(w: World, draw: Random) -> None:
    """The host writes memory of the device by an array over it, and reads it there."""
    import trnlab.frontends.torch as neuron

    x = w.any(draw, dtype=torch.float32)
    x = x.contiguous()
    y = x * 2
    over = neuron.to_numpy_alias(x)
    z = x + 1
    over[...] = 5
    t = x + 2
    x.add_(1)
    w.say([y, z, t, over.tolist()])
    over[...] = 3
    w.put(kept(y), kept(z), kept(t), x)


@step(2)
def threads(w: World, draw: Random) -> None:
    mine = [w.new(draw, (4,), torch.float32) for _ in range(2)]
    said: list[Any] = [None, None]
    rounds = draw.randint(2, 6)

    def work(i: int) -> None:
        x = mine[i]
        total = 0.0
        for k in range(rounds):
            x = (x * 2 + i).clamp(-9, 9)
            x[k % 4].add_(1)
            if k % 2:
                total += x.sum().item()
        said[i] = [total, x]

    both = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    w.say(said)


@step(2)
def collected(w: World, draw: Random) -> None:
    x = w.any(draw, kind="fi")
    y = x * 1
    cycle: list[Any] = [y]
    cycle.append(cycle)
    z = y.add_(1)
    del cycle, y
    gc.collect()
    w.put(kept(z))


@step(2)
def host_only(w: World, draw: Random) -> None:
    """What the chip has no format for."""
    x = w.any(draw, dtype=torch.float32, least=1, numel=1)
    c = torch.complex(x, x * 2)
    w.say([c.conj(), c.real + x, torch.view_as_real(c.conj().resolve_conj()), c.imag.neg(), x.double() * 2])
    w.put(kept(c.real + 1), kept((x.double() + 1).float()))


@step(2)
def mixed(w: World, draw: Random) -> None:
    x, m = w.new(draw, (3, 4), torch.float32), w.new(draw, (4, 4), torch.float32)
    with torch.autocast(w.device if w.device == "neuron" else "cpu", torch.bfloat16):
        y = x @ m
    w.say([str(y.dtype), y, y + x])

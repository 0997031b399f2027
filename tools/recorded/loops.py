# SPDX-License-Identifier: Apache-2.0
"""Drawn training loops: models, optimizers with their flags, and what scripts do around them."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tools.recorded.world import Said, World

Made = Callable[[Any], torch.optim.Optimizer]
STEPS = 4


class Mixed(nn.Module):
    """Layers of most kinds, tied, normalized and dropped. No bias of keys: its gradient is zero but for rounding,
    which optimizers that divide by its root make as large as any."""

    def __init__(self, draw: Random) -> None:
        super().__init__()
        self.embed, self.first = nn.Embedding(11, 8), nn.Linear(8, 8)
        self.norm: nn.Module = draw.choice((nn.LayerNorm(8), nn.BatchNorm1d(6), nn.RMSNorm(8), nn.GroupNorm(2, 6)))
        self.drop = nn.Dropout(draw.choice((0.0, 0.3, 0.5)))
        self.act = draw.choice((nn.ReLU(), nn.GELU(), nn.SiLU(), nn.LeakyReLU(), nn.PReLU(), nn.ELU()))
        self.middle: nn.Module = draw.choice(
            (
                nn.Linear(8, 8),
                nn.Identity(),
                nn.MultiheadAttention(8, 2, bias=False, batch_first=True),
                nn.GRU(8, 8, batch_first=True),
            )
        )
        self.conv = nn.Conv1d(6, 6, 3, padding=1, groups=draw.choice((1, 2)))
        self.out = nn.Linear(8, 11, bias=False)
        self.checks = draw.random() < 0.3
        if draw.random() < 0.3:
            self.out.weight = self.embed.weight
        wrap = draw.choice((None, None, parametrizations.weight_norm, parametrizations.spectral_norm))
        if wrap is not None:
            wrap(self.first)
        if draw.random() < 0.3:
            self.first.bias.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()))

    def _inside(self, x: Tensor) -> Tensor:
        x = self.drop(self.act(self.norm(self.first(x))))
        if isinstance(self.middle, nn.MultiheadAttention):
            return self.middle(x, x, x, need_weights=False)[0]
        x = self.middle(x)
        return x[0] if isinstance(x, tuple) else x

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next tokens."""
        x = self.embed(tokens)
        if self.training:
            self.seen += 1
        x = x + (checkpoint(self._inside, x, use_reentrant=False) if self.checks else self._inside(x))
        return self.out(x + self.conv(x))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda p, **k: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01, **k),
    "plain SGD": lambda p, **k: torch.optim.SGD(p, 0.05, **k),
    "Adam": lambda p, **k: torch.optim.Adam(p, 0.01, **k),
    "AdamW": lambda p, **k: torch.optim.AdamW(p, 0.01, amsgrad=True, **k),
    "Adagrad": lambda p, **k: torch.optim.Adagrad(p, 0.05, **k),
    "Adadelta": lambda p, **k: torch.optim.Adadelta(p, 1.0, **k),
    "Adamax": lambda p, **k: torch.optim.Adamax(p, 0.01, **k),
    "NAdam": lambda p, **k: torch.optim.NAdam(p, 0.01, decoupled_weight_decay=True, **k),
    "RAdam": lambda p, **k: torch.optim.RAdam(p, 0.01, **k),
    "RMSprop": lambda p, **k: torch.optim.RMSprop(p, 0.003, momentum=0.5, centered=True, **k),
    "Rprop": lambda p, **k: torch.optim.Rprop(p, 0.003, **k),
    "ASGD": lambda p, **k: torch.optim.ASGD(p, 0.05, **k),
    "Adafactor": lambda p, **k: torch.optim.Adafactor(p, 0.01, **k),
    "LBFGS": lambda p, **k: torch.optim.LBFGS(p, 0.05, max_iter=3),
}
_FUSED = ("SGD", "plain SGD", "Adam", "AdamW")
_CAPTURABLE = ("Adam", "AdamW", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "ASGD")


@dataclass(frozen=True)
class Loop:
    """A training loop that its number decides."""

    number: int
    steps: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return self.about(Random(self.number))[0]

    def about(self, draw: Random) -> tuple[str, dict[str, Any]]:
        """The optimizer's name and flags."""
        name = draw.choice(list(OPTIMIZERS))
        flags: dict[str, Any] = {}
        if name != "LBFGS":
            flags = draw.choice(({}, {"foreach": True}, {"foreach": False}, {"maximize": True}))
            if name in _FUSED and draw.random() < 0.3:
                flags = {"fused": True}
        return name, flags

    def run(self, device: str) -> list[Said]:
        """What the loop says on a device."""
        draw = Random(self.number)
        w = World(device)
        name, flags = self.about(draw)
        w.step = f"{name} {flags}"
        torch.manual_seed(self.number)
        model = Mixed(draw).to(device)
        optimizer = OPTIMIZERS[name]([p for p in model.parameters() if p.requires_grad], **flags)
        _Training(w, draw, model, optimizer, name).run()
        return w.said


class _Training:
    def __init__(self, w: World, draw: Random, model: Mixed, optimizer: torch.optim.Optimizer, name: str) -> None:
        self.w, self.draw, self.model, self.optimizer, self.name = w, draw, model, optimizer, name
        self.scaler = torch.amp.GradScaler(
            w.device, init_scale=256.0, enabled=draw.random() < 0.3 and name != "LBFGS"
        )
        self.clips, self.asks, self.none = draw.random() < 0.4, draw.choice((0, 1, 2)), draw.random() < 0.6
        self.schedule = draw.choice(
            (
                lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
                lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
                lambda o: torch.optim.lr_scheduler.ConstantLR(o),
                lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 20),
                lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
                lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)),
            )
        )(optimizer)
        self.average = draw.choice((None, "ema", "swa", "lerp"))
        self.mean = None
        if self.average in ("ema", "swa"):
            how = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9) if self.average == "ema" else None
            self.mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=how)
        elif self.average == "lerp":
            self.mean = copy.deepcopy(model)
        self.events = {draw.randrange(STEPS): draw.choice(list(EVENTS)) for _ in range(draw.randint(0, 3))}
        self.parts = draw.choice((1, 1, 2))

    def run(self) -> None:
        """All steps, and what is left afterwards."""
        for number in range(STEPS):
            EVENTS[self.events[number]](self) if number in self.events else None
            self.w.step = f"{self.name}, step {number}, {self.events}"
            self.one(number)
        self.w.step = f"{self.name}, at the end"
        state = self.mean.state_dict() if self.mean is not None else {}
        self.w.say([*self.model.state_dict().values(), *state.values()], exact=False)
        self.w.say(
            [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, Tensor)], exact=False
        )
        self.model.eval()
        with torch.no_grad():
            self.w.say(self.model(self.batch(99)[0]), exact=False)
        self.w.say(torch.rand(1))

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Tokens and targets that the host draws."""
        given = torch.Generator().manual_seed(self.number_of(number))
        tokens = torch.randint(0, 11, (4, 6), generator=given)
        return tokens.to(self.w.device), tokens.roll(1, 1).to(self.w.device)

    def number_of(self, number: int) -> int:
        """A seed."""
        return number + 1

    def loss(self, number: int) -> Tensor:
        """The loss of one batch."""
        tokens, targets = self.batch(number)
        logits = self.model(tokens)
        return F.cross_entropy(logits.reshape(-1, 11), targets.reshape(-1)) / self.parts

    def one(self, number: int) -> None:
        """One step as people write it."""
        if self.name == "LBFGS":
            self.w.say(self.optimizer.step(lambda: self._closure(number)), exact=False)
            return
        self.optimizer.zero_grad(set_to_none=self.none)
        losses = []
        for part in range(self.parts):
            loss = self.loss(number * 10 + part)
            self.scaler.scale(loss).backward()
            losses.append(loss.detach())
        if self.asks == 1:
            self.w.say(losses[0].item(), exact=False)
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            losses.append(norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        if self.average == "lerp":
            with torch.no_grad():
                for a, b in zip(self.mean.parameters(), self.model.parameters()):
                    a.lerp_(b, 0.1)
        elif self.mean is not None:
            self.mean.update_parameters(self.model)
        if self.asks:
            self.w.say(losses, exact=False)

    def _closure(self, number: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(number)
        loss.backward()
        return loss


def _evaluates(t: _Training) -> None:
    t.model.eval()
    with draw_mode(t.draw):
        t.w.say(t.model(t.batch(50)[0]).argmax(-1).float().mean().item() >= 0)
    t.model.train()


def draw_mode(draw: Random) -> contextlib.AbstractContextManager[Any]:
    """Without gradients, one way or the other."""
    return draw.choice((torch.no_grad, torch.inference_mode))()


def _resumes(t: _Training) -> None:
    file = io.BytesIO()
    torch.save({"model": t.model.state_dict(), "optimizer": t.optimizer.state_dict()}, file)
    file.seek(0)
    read = torch.load(file)
    with torch.no_grad():
        for p in t.model.parameters():
            p.add_(1)
    t.model.load_state_dict(read["model"])
    t.optimizer.load_state_dict(read["optimizer"])


def _replaces(t: _Training) -> None:
    with torch.no_grad():
        t.model.conv.weight.data = t.model.conv.weight * 0.5
        t.model.conv.bias.mul_(2)


def _fails(t: _Training) -> None:
    t.optimizer.zero_grad()
    try:
        t.loss(7).backward()
        with torch.no_grad():
            t.model.conv.weight.add_(0.125)
        raise KeyError
    except KeyError:
        t.optimizer.zero_grad()


def _freezes(t: _Training) -> None:
    t.model.embed.weight.requires_grad_(not t.model.embed.weight.requires_grad)


def _hooks(t: _Training) -> None:
    t.model.conv.weight.register_hook(lambda g: g * 0.5)
    t.model.first.register_forward_hook(lambda m, a, y: y + 0.125)


def _functional(t: _Training) -> None:
    state = {k: v.detach() * 0.5 for k, v in t.model.named_parameters()}
    t.model.eval()
    tokens, targets = t.batch(60)

    def loss(p: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(t.model, p, (tokens,)).reshape(-1, 11), targets.reshape(-1))

    with contextlib.suppress(RuntimeError):  # parametrized weights
        t.w.say(list(torch.autograd.functional.vjp(lambda v: v * v, t.model.embed.weight.detach())), exact=False)
        t.w.say(loss(state), exact=False)
    t.model.train()


def _copies(t: _Training) -> None:
    t.w.say([*copy.deepcopy(t.model).state_dict().values()], exact=False)


def _half(t: _Training) -> None:
    with torch.autocast(t.w.device, torch.bfloat16), torch.no_grad():
        y = t.model.out(t.model.embed(t.batch(3)[0]))
    t.w.say(str(y.dtype))
    t.w.said[-1:] = []


EVENTS: dict[str, Callable[[_Training], None]] = {
    "evaluates": _evaluates,
    "resumes": _resumes,
    "replaces": _replaces,
    "fails": _fails,
    "freezes": _freezes,
    "hooks": _hooks,
    "functional": _functional,
    "copies": _copies,
    "half": _half,
}


def drawn(number: int) -> Loop:
    """The loop of that number."""
    return Loop(number)

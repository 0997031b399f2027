# SPDX-License-Identifier: Apache-2.0
"""Training loops as people write them: the losses are those of the same loop on the host.

Each loop is a function of a device and of what compiles: `compiled` wraps a model. On the host that does nothing; on
the device it is torch.compile(backend="neuron").
"""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import trnlab.frontends.torch as neuron

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def interpreter():
    torch._dynamo.reset()
    with neuron.use(neuron.InterpreterEngine()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own, of checkpoints and of schedules
        yield


class Blocks(nn.Module):
    """A stem and three blocks; `reentrant` is how checkpoint is called on the blocks, None for not at all.

    (Without the stem a reentrant checkpoint has no input with a gradient, and PyTorch gives its block none.)
    """

    def __init__(self, reentrant=None, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)) for _ in range(3))
        self.stem, self.head, self.reentrant = nn.Linear(8, 8), nn.Linear(8, 4), reentrant

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def batch(i, device):
    generator = torch.Generator().manual_seed(i)
    x, y = torch.randn(6, 8, generator=generator), torch.randint(0, 4, (6,), generator=generator)
    return x.to(device), y.to(device)


def plain(device, compiled, model=None, optimizer=torch.optim.AdamW, after=lambda model, optimizer: None, steps=4):
    """Forward, backward, `after`, update."""
    model = (model or Blocks()).to(device)
    opt, run, losses = optimizer(model.parameters(), lr=1e-2), compiled(model), []
    for i in range(steps):
        x, y = batch(i, device)
        loss = F.cross_entropy(run(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        after(model, opt)
        opt.step()
        losses.append(loss.item())
    return losses


def reentrant_checkpoints(device, compiled):
    return plain(device, compiled, Blocks(reentrant=True))


def checkpoints(device, compiled):
    return plain(device, compiled, Blocks(reentrant=False))


def clipped_norm(device, compiled):
    return plain(device, compiled, after=lambda m, o: nn.utils.clip_grad_norm_(m.parameters(), 0.1))


def clipped_value(device, compiled):
    return plain(device, compiled, after=lambda m, o: nn.utils.clip_grad_value_(m.parameters(), 0.01))


def accumulated(device, compiled):
    """Four micro batches to an update, gradients added up."""
    model = Blocks().to(device)
    opt, run, losses = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9), compiled(model), []
    for i in range(8):
        x, y = batch(i, device)
        loss = F.cross_entropy(run(x), y) / 4
        loss.backward()
        if i % 4 == 3:
            opt.step()
            opt.zero_grad()
        losses.append(loss.item())
    return losses


def scaled(device, compiled):
    """autocast with GradScaler, which skips a step with infinite gradients and unscales before clipping."""
    model = Blocks().to(device)
    opt, run, losses = torch.optim.SGD(model.parameters(), 0.1), compiled(model), []
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    for i in range(5):
        x, y = batch(i, device)
        x = x * float("inf") if i == 2 else x
        loss = F.cross_entropy(run(x.clamp(-1e4, 1e4)) * (float("inf") if i == 2 else 1.0), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        losses.append(scaler.get_scale() if i == 2 else loss.item())
    return losses


def averaged(device, compiled):
    """An exponential moving average of the parameters, by PyTorch's class and by hand, evaluated under no_grad."""
    model = Blocks().to(device)
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    mine = copy.deepcopy(model)
    losses = plain(device, compiled, model, after=lambda m, o: (ema.update_parameters(m), follow(mine, m)))
    x, y = batch(9, device)
    with torch.no_grad():
        return [*losses, *(F.cross_entropy(m.eval()(x), y).item() for m in (ema, mine))]


@torch.no_grad()
def follow(shadow, model):
    for slow, fast in zip(shadow.parameters(), model.parameters()):
        slow.mul_(0.9).add_(fast, alpha=0.1)


def scheduled(device, compiled):
    """Warm-up and cosine, one after the other."""
    schedules = []

    def after(model, opt):
        if not schedules:
            warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=2)
            cosine = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 4)
            schedules.append(torch.optim.lr_scheduler.SequentialLR(opt, [warm, cosine], [2]))
        schedules[0].step()

    return plain(device, compiled, after=after, steps=6)


def frozen_and_thawed(device, compiled):
    """The first blocks learn from the third step on."""
    model = Blocks().to(device)
    model.blocks.requires_grad_(False)
    opt, run, losses = torch.optim.Adam(model.parameters(), 1e-2), compiled(model), []
    for i in range(5):
        if i == 2:
            model.blocks.requires_grad_(True)
        x, y = batch(i, device)
        loss = F.cross_entropy(run(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def adversaries(device, compiled):
    """A GAN: two models, two optimizers, three losses, one of them through both models."""
    torch.manual_seed(1)
    maker = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).to(device)
    judge = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)).to(device)
    opts = [torch.optim.Adam(m.parameters(), 1e-2, betas=(0.5, 0.999)) for m in (maker, judge)]
    make, judged, losses = compiled(maker), compiled(judge), []
    for i in range(3):
        real, noise = batch(i, device)[0], batch(i + 50, device)[0]
        fake = make(noise)
        ones, zeros = torch.ones(6, 1, device=device), torch.zeros(6, 1, device=device)
        opts[1].zero_grad()
        bce = F.binary_cross_entropy_with_logits
        loss = bce(judged(real), ones) + bce(judged(fake.detach()), zeros)
        loss.backward()
        opts[1].step()
        opts[0].zero_grad()
        fooled = bce(judged(fake), ones)
        fooled.backward()
        opts[0].step()
        losses += [loss.item(), fooled.item()]
    return losses


def two_losses(device, compiled):
    """Two backward passes through one forward pass."""
    model = Blocks().to(device)
    opt, run, losses = torch.optim.RMSprop(model.parameters(), 1e-3), compiled(model), []
    for i in range(3):
        x, y = batch(i, device)
        out = run(x)
        first, second = F.cross_entropy(out, y), out.square().mean()
        opt.zero_grad()
        first.backward(retain_graph=True)
        (0.1 * second).backward()
        opt.step()
        losses += [first.item(), second.item()]
    return losses


def closures(device, compiled):
    """LBFGS, which evaluates the loss several times in a step."""
    model = Blocks().to(device)
    opt = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")
    run, losses = compiled(model), []
    x, y = batch(0, device)

    def closure():
        opt.zero_grad()
        loss = F.cross_entropy(run(x), y)
        loss.backward()
        return loss

    for _ in range(2):
        losses.append(opt.step(closure).item())
    return losses


LOOPS = [
    reentrant_checkpoints,
    checkpoints,
    clipped_norm,
    clipped_value,
    accumulated,
    scaled,
    averaged,
    scheduled,
    frozen_and_thawed,
    adversaries,
    two_losses,
    closures,
]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_torch_compile_gives_the_losses_of_the_host(loop):
    expected = loop("cpu", lambda model: model)
    found = loop("neuron", lambda model: torch.compile(model, backend="neuron"))
    assert found == pytest.approx(expected, rel=2e-5, abs=2e-6)


# -- with compile_step ----------------------------------------------------------------------------------------------
def on_host(model, optimizer, loss_fn, batches):
    losses = []
    for given in batches:
        loss = loss_fn(model, *given)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("reentrant", [True, False])
def test_dropout_is_the_same_when_computed_again(reentrant):
    """The gradient of a sum over dropped numbers shows the mask of the backward pass."""
    x = torch.ones(4, 64).to("neuron").requires_grad_()
    model = nn.ParameterList([nn.Parameter(torch.zeros(64))]).to("neuron")
    step = neuron.compile_step(
        model,
        torch.optim.SGD(model.parameters(), 1.0),
        lambda m, x: (drop := checkpoint(F.dropout, m[0] + x, 0.5, use_reentrant=reentrant), drop.sum())[::-1],
    )
    _, dropped = step(x)
    assert 0.2 < (dropped == 0).float().mean().item() < 0.8
    assert torch.equal(model[0].detach().cpu(), -dropped.detach().cpu().sum(0))


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_within_a_step(reentrant):
    """With and without the stored activations of the forward pass."""
    losses = []
    for device in ("cpu", "neuron"):
        model = Blocks(reentrant).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        loss_fn = lambda m, x, y: F.cross_entropy(m(x), y)  # noqa: E731
        batches = [batch(i, device) for i in range(3)]
        if device == "cpu":
            losses.append(on_host(model, optimizer, loss_fn, batches))
        else:
            step = neuron.compile_step(model, optimizer, loss_fn)
            losses.append([step(*given).item() for given in batches])
    assert losses[1] == pytest.approx(losses[0], abs=2e-6)


def test_accumulation_within_a_step():
    """Micro batches in the loss function."""

    def loss_fn(m, x, y):
        return sum(F.cross_entropy(m(a), b) for a, b in zip(x.split(2), y.split(2))) / 3

    losses = []
    for device in ("cpu", "neuron"):
        model = Blocks().to(device)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        batches = [batch(i, device) for i in range(3)]
        if device == "cpu":
            losses.append(on_host(model, optimizer, loss_fn, batches))
        else:
            step = neuron.compile_step(model, optimizer, loss_fn)
            losses.append([step(*given).item() for given in batches])
    assert losses[1] == pytest.approx(losses[0], abs=2e-6)


def test_two_steps_train_two_models():
    """A GAN with a step for each player; the other model's parameters are frozen in it."""
    losses = []
    for device in ("cpu", "neuron"):
        torch.manual_seed(1)
        maker, judge = (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, n)).to(device) for n in (8, 1))
        opts = [torch.optim.Adam(m.parameters(), 1e-2) for m in (maker, judge)]
        bce = F.binary_cross_entropy_with_logits

        def judging(m, real, noise, maker=maker, bce=bce):
            right, wrong = m(real), m(maker(noise).detach())
            return bce(right, torch.ones_like(right)) + bce(wrong, torch.zeros_like(wrong))

        def making(m, noise, judge=judge, bce=bce):
            out = judge(m(noise))
            return bce(out, torch.ones_like(out))

        if device == "neuron":
            steps = neuron.compile_step(judge, opts[1], judging), neuron.compile_step(maker, opts[0], making)
        else:
            steps = [
                lambda *given, m=m, o=o, f=f: torch.tensor(on_host(m, o, f, [given])[0])
                for m, o, f in ((judge, opts[1], judging), (maker, opts[0], making))
            ]
        found = []
        for i in range(3):
            real, noise = batch(i, device)[0], batch(i + 50, device)[0]
            found += [steps[0](real, noise).item(), steps[1](noise).item()]
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], abs=5e-6)


def test_a_policy_of_distributions():
    """PPO's loss: what torch.distributions checks of its arguments is left out of a captured step."""

    def loss_fn(m, x, y):
        chosen = torch.distributions.Categorical(logits=m(x))
        ratio = (chosen.log_prob(y) - 0.25).exp()
        gains = x.mean(1)
        return -torch.min(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean() - 0.01 * chosen.entropy().mean()

    losses, checked = [], torch.distributions.Distribution._validate_args
    for device in ("cpu", "neuron"):
        model = Blocks().to(device)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        batches = [batch(i, device) for i in range(3)]
        if device == "cpu":
            losses.append(on_host(model, optimizer, loss_fn, batches))
        else:
            step = neuron.compile_step(model, optimizer, loss_fn)
            losses.append([step(*given).item() for given in batches])
    assert losses[1] == pytest.approx(losses[0], abs=2e-6)
    assert torch.distributions.Distribution._validate_args == checked


class Pair(tuple):
    """As e3nn's irreps: a tuple that denies having a length, and yields something else than it holds."""

    def __len__(self):
        raise NotImplementedError

    def __iter__(self):
        raise NotImplementedError


def test_a_tuple_that_denies_its_length_is_looked_into():
    model = nn.Linear(8, 4).to("neuron")
    model.scale = Pair((2.0,))
    step = neuron.compile_step(
        model, torch.optim.SGD(model.parameters(), 0.0), lambda m, x, y: F.cross_entropy(m.scale[0] * m(x), y)
    )
    given = batch(0, "neuron")
    first = step(*given).item()
    model.scale = Pair((3.0,))
    assert step(*given).item() != first

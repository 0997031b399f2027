# SPDX-License-Identifier: Apache-2.0
"""Three steps of AdamW on several ranks, held against those of one process with the whole batch."""

import torch
import torch.distributed as dist
from together import DEVICE, RANKS

SAME_ORDER, OTHER_ORDER = 1e-6, 1e-5  # of each tensor's largest, in fp32
STEPS, RATE = 3, 1e-2


def optimizer_of(parameters, **options):
    return torch.optim.AdamW(list(parameters), RATE, **options)


class Alone:
    """What one process learns: per step the loss and the gradients, and the parameters at the end, by name."""

    def __init__(self, model, loss_of):
        optimizer = optimizer_of(model.parameters())
        self.losses, self.gradients = [], []
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            self.losses.append(loss.item())
            self.gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
            optimizer.step()
        self.parameters = {name: p.detach().clone() for name, p in model.named_parameters()}


def near(got, meant, bound, what):
    whole = (got.full_tensor() if hasattr(got, "full_tensor") else got).detach().cpu()
    assert whole.shape == meant.shape, (what, whole.shape, meant.shape)
    off = ((whole - meant).abs().max() / meant.abs().max().clamp_min(1e-3)).item()
    assert off <= bound, f"{what} is {off:.1e} off, {bound:.0e} at most"


def average(tensors, group=None):
    """Of gradients that every rank has for its own part of the batch."""
    for tensor in tensors:
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)


def train(named, step, alone, bound=OTHER_ORDER, part=lambda name, tensor: tensor, **options):
    """Three steps. named: this rank's parameters by their names in the whole model. step(): gradients, and the loss
    of this rank's part of the batch (None where it has none). part: what this rank has of a tensor of the whole.
    Returns the bits of all losses and parameters."""
    optimizer, losses = optimizer_of(named.values(), **options), []
    for number in range(STEPS):
        optimizer.zero_grad()
        losses.append(step())
        for name, parameter in named.items():
            meant = part(name, alone.gradients[number][name])
            near(parameter.grad, meant, bound, f"gradient {number} of {name}")
        optimizer.step()
    for name, parameter in named.items():
        near(parameter, part(name, alone.parameters[name]), bound, name)
    listed = [None] * RANKS
    dist.all_gather_object(listed, losses)
    for number, meant in enumerate(alone.losses):
        said = [each[number] for each in listed if each[number] is not None]
        assert abs(sum(said) / len(said) - meant) <= 1e-6 * max(1, abs(meant)), (number, said, meant)
    local = (getattr(p, "_local_tensor", p).detach().cpu().contiguous() for p in named.values())
    return losses, [tensor.numpy().tobytes() for tensor in local]


def on_device(*tensors):
    return [tensor.to(DEVICE) for tensor in tensors]

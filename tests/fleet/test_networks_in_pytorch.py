# SPDX-License-Identifier: Apache-2.0
"""Networks that plans are made of compute what the same networks in PyTorch do: losses and all gradients."""

from __future__ import annotations

import re

import numpy as np
import pytest
from test_networks import SMALL as RESNET
from test_unets import SMALL as UNET
from test_unets import XL

from trnlab.fleet.costs.networks import UPDATES
from trnlab.fleet.layers.convolutional import ConvolutionalLayers
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.configurations import from_config
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import float32

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
PARTS = {"q": "query", "k": "key", "v": "value", "o": "out"}
BATCH = 3


def _reference(kind):
    """A network in PyTorch, and its loss of inputs in the order in which the layers are given them."""
    from torch.nn import functional

    torch.manual_seed(0)
    if kind == "resnet":
        from resnet_in_pytorch import ResNet

        network = ResNet((2, 1), (32, 64), 16, 3, 10)
        return network, lambda x, labels: functional.cross_entropy(network(x), labels[:, 0].long())
    from unet_in_pytorch import UNet as Network

    network = Network((16, 32), (0, 2), 2, (1, 2), 1, 16, 24, 4, 4)
    return network, lambda x, noise, t, words, pooled: functional.mse_loss(network(x, t, words, pooled), noise)


def _in_pytorch(name):
    """What PyTorch calls a weight."""
    name = re.sub(r"(own|cross)_([qkvo])", lambda m: f"{m[1]}.{PARTS[m[2]]}", name)
    name = re.sub(r"around\.norm_(scale|shift)", r"around.1_\1", name)
    name = re.sub(r"(blocks\.\d+)\.around$", r"\1.around.0", name)
    name = re.sub(r"(blocks\.\d+)\.(\d)\.norm_", r"\1.norm\2_", name)
    name = re.sub(r"(blocks\.\d+)\.(\d)$", r"\1.conv\2", name)
    base, _, kind = name.rpartition("_")
    return {"scale": f"{base}.weight", "shift": f"{base}.bias", "bias": f"{base}.bias"}.get(kind, f"{name}.weight")


def _step(kind, again):
    """A graph of the loss and of the gradients of all weights, which come in their order."""
    config = RESNET if kind == "resnet" else UNET | XL | {"transformer_layers_per_block": [1, 2]}
    share = ShardSpec(BATCH, 1, form="float32", block="again" if again else "kept")
    layers = ConvolutionalLayers("step", share)
    loss = from_config(config, kind).network.loss(layers)
    weights = list(layers.weights.values())
    gradients = layers.b.gradients({loss: layers.b.constant(1.0, loss.dtype)}, weights)
    for value in (loss, *(gradients[weight] for weight in weights)):
        layers.b.output(value)
    return layers


def _drawn(value, rng):
    """An input: labels or times, else numbers about zero; running averages, which nothing here reads."""
    if value.dtype.name == "int32":
        return rng.integers(0, 10, value.shape, dtype=np.int32)
    return rng.standard_normal(value.shape).astype(np.float32)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("kind", ["resnet", "unet"])
def test_losses_and_gradients_are_pytorchs(kind, again):
    network, loss = _reference(kind)
    named, layers, rng = dict(network.named_parameters()), _step(kind, again), np.random.default_rng(0)
    weights = {value: named[_in_pytorch(name)] for name, value in layers.weights.items()}
    assert {id(p) for p in weights.values()} == {id(p) for p in named.values()}
    given = [weights[v].detach().numpy() if v in weights else _drawn(v, rng) for v in layers.b.graph.inputs]
    old = {value for value, _ in layers.averages}
    batch = [torch.tensor(x) for v, x in zip(layers.b.graph.inputs, given) if v not in weights and v not in old]
    expected = loss(*batch)
    expected.backward()
    found = interpret(layers.b.build(), given)
    assert found[0] == pytest.approx(expected.item(), rel=1e-5)
    for gradient, parameter in zip(found[1:], weights.values()):
        theirs = parameter.grad.numpy()
        assert np.abs(gradient - theirs).max() <= 2e-4 * np.abs(theirs).max() + 1e-6


@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_pytorchs(name):
    """Three steps of one tensor, with state that is none at first."""
    b = GraphBuilder("update")
    weight, gradient = (b.input(each, (5,), float32) for each in ("weight", "gradient"))
    UPDATES[name](b, [weight], [gradient])
    graph, rng = b.build(), np.random.default_rng(0)
    values = {v: np.zeros(v.shape, np.float32) for v in graph.inputs}
    values[weight] = rng.standard_normal(5).astype(np.float32)
    parameter = torch.nn.Parameter(torch.tensor(values[weight]))
    rate = next(v for v in graph.inputs if v.name == "rate")
    if name == "momentum":
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9, weight_decay=5e-5)
    else:
        optimizer = torch.optim.AdamW([parameter], lr=0.1)
    for _ in range(3):
        values[rate] = np.float32(0.1)
        values[gradient] = rng.standard_normal(5).astype(np.float32)
        parameter.grad = torch.tensor(values[gradient])
        optimizer.step()
        found = interpret(graph, [values[v] for v in graph.inputs])
        values |= {graph.inputs[source]: found[out] for out, source in graph.aliases.items()}
        assert values[weight] == pytest.approx(parameter.detach().numpy(), rel=1e-5, abs=1e-6)

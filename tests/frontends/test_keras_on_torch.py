# SPDX-License-Identifier: Apache-2.0
"""Keras models on PyTorch's backend through compile_step: in a process of their own, where Keras has that backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")

SCRIPT = """
import keras, torch
from trnlab import chips
from trnlab.frontends.torch import compile_step
from trnlab.runtime import session

def build():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"),
              keras.layers.BatchNormalization(), keras.layers.Dense(4)]
    return keras.Sequential(layers)

def loss(model, x, y):
    return ((model(x, training=True) - y) ** 2).mean()

x, y = torch.linspace(-1, 1, 48).reshape(6, 8).sin(), torch.zeros(6, 4)

def train(model, step, x, y):
    losses = []
    for i in range(5):
        model.layers[1].momentum = 0.99 if i < 3 else 0.5
        losses.append(step(model, x, y))
    return losses, model.layers[1].moving_mean.value.cpu()

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def on_host(model, x, y):
    optimizer.zero_grad()
    value = loss(model, x, y)
    value.backward()
    optimizer.step()
    return value.item()
expected, mean = train(model, on_host, x, y)

target = chips.target("trn1.2xlarge")
with session.activate(session.Session(target, "fp32")), keras.device("neuron:0"):
    model = build().to("neuron")
    compiled = compile_step(model, torch.optim.SGD(model.parameters(), lr=0.1), loss)
    found, chips_mean = train(model, lambda model, *batch: compiled(*batch).item(), x.to("neuron"), y.to("neuron"))
torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-5, atol=1e-5)
torch.testing.assert_close(chips_mean, mean, rtol=1e-4, atol=1e-5)
"""


def test_a_model_trains_and_its_numbers_are_guarded(tmp_path):
    """Losses are the host's, and so are running means once a layer's momentum was changed."""
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "KERAS_BACKEND": "torch", "PYTHONPATH": str(source), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "momentum was 0.99, is 0.5" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""`trnlab estimate` of a forward pass alone, and what rates and dollars of any step are of."""

from __future__ import annotations

import json

import pytest

from trnlab import chips
from trnlab.cli.main import main
from trnlab.estimate.forecast import GraphRuns, StepWork, _least
from trnlab.estimate.layout import FORWARD, smallest
from trnlab.estimate.result import LargeTensor, MemoryReport
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import dtype

SCRIPT = """
import torch
import trnlab
from torch import nn

model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).to("neuron")
compiled = torch.compile(model, backend="neuron")
for _ in range(3):
    {then}
"""
PASS = 'compiled(torch.randn(32, 128).to("neuron"))'
THEN = {
    "with gradients that nobody asks for": PASS,
    "without": f"with torch.no_grad():\n        {PASS}",
    "training": f"{PASS}.sum().backward()",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pytest.importorskip("torch")
    folder, records = tmp_path_factory.mktemp("passes"), {}
    for name, then in THEN.items():
        (folder / "one.py").write_text(SCRIPT.format(then=then))
        out = folder / "out.json"
        with pytest.MonkeyPatch.context() as patch:
            said = []
            patch.setattr("builtins.print", lambda *text, said=said, **_: said.append(" ".join(map(str, text))))
            assert (
                main(
                    [
                        "estimate",
                        "--stack",
                        "ours",
                        "--json",
                        "--no-cache",
                        "--target",
                        "inf2.xlarge",
                        str(folder / "one.py"),
                    ]
                )
                == 0
            )
        out.write_text("\n".join(said))
        records[name] = json.loads(out.read_text())
    return records


@pytest.mark.parametrize("name", list(THEN)[:2])
def test_a_forward_pass_is_one(found, name):
    """All of its time is the forward pass's, three of them are not one, and a price has no exchange of gradients."""
    record, (target,) = found[name], found[name]["targets"]
    assert not record["learns"]
    assert list(target["parts"]) == ["forward"]
    assert record["per_step"] == 32
    assert target["step_s"] < found["training"]["targets"][0]["step_s"]
    cores = chips.target("inf2.xlarge").cores
    assert target["per_s"] == pytest.approx(32 * cores / target["step_s"])


def test_training_is_told_from_it(found):
    record, (target,) = found["training"], found["training"]["targets"]
    assert record["learns"]
    assert {"forward", "backward"} <= set(target["parts"])
    cores = chips.target("inf2.xlarge").cores
    assert target["per_s"] < 32 * cores / target["step_s"]  # gradients are exchanged among cores


@pytest.mark.parametrize("name", THEN)
def test_rates_and_dollars_are_of_the_same_cores(found, name):
    (target,) = found[name]["targets"]
    an_hour = target["per_s"] * 3600 * target["usd_per_million"] / 1e6
    assert an_hour == pytest.approx(target["usd_per_hour"])


def test_no_layout_of_a_forward_pass_exchanges_gradients():
    target = chips.target("trn1.32xlarge")
    memory = MemoryReport(parameters=3 * target.chip.hbm.capacity_bytes)
    one, both = smallest(memory, 1.0, target, learns=False), smallest(memory, 1.0, target)
    assert one.basis == FORWARD
    assert one.communication_s < both.communication_s / 2


def test_cores_that_share_a_batch_do_not_share_its_tracing():
    target = chips.target("trn1.32xlarge")
    memory = MemoryReport(parameters=1 << 30, activations=3 * target.chip.hbm.capacity_bytes)
    alone, traced = (smallest(memory, 2.0 + host_s, target, host_s=host_s) for host_s in (0.0, 0.5))
    assert alone.tensor > 1
    assert traced.time_s == pytest.approx([each + 0.5 for each in alone.time_s])


def test_what_is_refused_has_its_parameters_once():
    b = GraphBuilder("forward")
    b.output(b.add(b.input("w", (4, 8), dtype("float32")), b.input("x", (4, 8), dtype("float32"))))
    graph = b.build()
    kept = [LargeTensor("w", "parameter", (4, 8), "float32", 128)]
    for parts in (1, 2):
        found = _least(StepWork([GraphRuns(graph, 1, ("parameter", "batch"))] * parts, kept))
        assert (found.parameters, found.batch) == (128, 128)


JAX = """
import jax
import jax.numpy as jnp

def block(w, v, x):
    return x + jax.nn.gelu(x @ w) @ v

def loss(w, v, x):
    return block(w, v, x).sum()

w, v, x = jnp.ones((64, 128)), jnp.ones((128, 64)), jnp.ones((32, 64))
run = jax.jit({what})
for _ in range(3):
    print(jax.tree.leaves(run(w, v, x))[0].sum())
"""


def _estimated(tmp_path, text):
    (tmp_path / "one.py").write_text(text)
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *text, **_: said.append(" ".join(map(str, text))))
        command = [
            "estimate",
            "--stack",
            "ours",
            "--json",
            "--no-cache",
            "--target",
            "trn1.32xlarge",
            str(tmp_path / "one.py"),
        ]
        assert main(command) == 0
    return json.loads("\n".join(said))


def test_a_block_of_jax_whose_result_looks_as_its_argument_does_is_a_forward_pass(tmp_path):
    pytest.importorskip("jax")
    record = _estimated(tmp_path, JAX.format(what="block"))
    (target,) = record["targets"]
    assert not record["learns"]
    assert list(target["parts"]) == ["forward"]
    assert (record["per_step"], record["counted"], record["parameters"]) == (32, "samples", 2 * 64 * 128)
    assert target["per_s_of_core"] == pytest.approx(32 / target["step_s"])
    assert target["per_s"] == pytest.approx(32 * target["per_s_of_core"])


def test_gradients_of_jax_are_training(tmp_path):
    """Without a loss among the results, too."""
    pytest.importorskip("jax")
    assert _estimated(tmp_path, JAX.format(what="jax.grad(loss)"))["learns"]


def test_what_a_forward_pass_is_told_by(tmp_path, capsys):
    """Latency, rates of a core and of the instance, a price; nothing of training."""
    pytest.importorskip("torch")
    (tmp_path / "one.py").write_text(SCRIPT.format(then=THEN["without"]))
    assert main(["estimate", "--no-cache", "--target", "inf2.xlarge", str(tmp_path / "one.py")]) == 0
    said = capsys.readouterr().out
    for words in ("latency, one core", "samples/s, one core", "samples/s, instance", "$/million samples"):
        assert words in said
    for words in ("update", "optimizer", "backward", "gradients"):
        assert words not in said

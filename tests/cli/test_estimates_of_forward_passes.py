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
            assert main(["estimate", "--json", "--no-cache", "--target", "inf2.xlarge", str(folder / "one.py")]) == 0
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


def test_what_is_refused_has_its_parameters_once():
    b = GraphBuilder("forward")
    b.output(b.add(b.input("w", (4, 8), dtype("float32")), b.input("x", (4, 8), dtype("float32"))))
    graph = b.build()
    kept = [LargeTensor("w", "parameter", (4, 8), "float32", 128)]
    for parts in (1, 2):
        found = _least(StepWork([GraphRuns(graph, 1, ("parameter", "batch"))] * parts, kept))
        assert (found.parameters, found.batch) == (128, 128)

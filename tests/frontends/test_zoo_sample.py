# SPDX-License-Identifier: Apache-2.0
"""A sample of the zoo trains under `torch.compile`, and the host runs none of its operators."""

from __future__ import annotations

import pytest
import torch

from tools.zoo.gradients import compared, gradients, reference_gradients
from tools.zoo.models import MODELS
from tools.zoo.run_one import on_device, reference, verdict
from tools.zoo.training import Training
from trnlab import chips
from trnlab.runtime import session

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),
]
SAMPLE = (
    "gru",
    "graph_scatter_max",
    "batch_normed_mlp",
    "transformer_with_masks",
    "experts_with_capacity",
    "equivariant_docking",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_it_trains(name):
    torch.compiler.reset()
    torch.manual_seed(0)
    subject = MODELS[name]()
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        record = on_device(subject, "torch.compile", reference(subject, 3))
    assert (record["verdict"], record["host_ops"]) == ("trains", {})


def test_a_wrong_update_is_found_in_pairs_of_steps_and_in_a_whole_training():
    """The comparison sees a learning rate that is off by a tenth."""
    torch.manual_seed(0)
    subject = MODELS["batch_normed_mlp"]()
    host = reference(subject, 4)
    starts, exact = Training(subject, torch.float64).starts(4)
    wrong = Training(subject)
    wrong.optimizer.param_groups[0]["lr"] *= 1.1
    free = max(abs(a - b) for a, b in zip(wrong.losses(4), host.exact))
    pairs = max(abs(a - b) for a, b in zip(wrong.losses(4, starts), exact))
    assert {verdict(gap, host) for gap in (free, pairs)} == {"wrong"}
    assert verdict(host.band, host) == "trains"


@pytest.mark.parametrize("way", ["eager", "compile_step"])
def test_gradients_are_those_of_the_host(way):
    torch.manual_seed(0)
    subject = MODELS["batch_normed_mlp"]()
    with session.activate(session.Session(chips.target("trn1.2xlarge"), "fp32")):
        found = compared(gradients(subject, way=way), reference_gradients(subject))
    assert found["count"] == len(list(subject.model.parameters()))
    assert not found["wrong"], found


def test_a_wrong_gradient_is_found_which_no_loss_shows():
    torch.manual_seed(0)
    subject = MODELS["batch_normed_mlp"]()
    host, exact = reference_gradients(subject), gradients(subject, torch.float64)
    name = max(exact, key=lambda n: exact[n].numel())
    for wrong in (
        lambda g: g * (1 + 1e-3),
        lambda g: g.index_fill(0, torch.tensor([1]), 0.0),
        lambda g: g * torch.nan,
    ):
        assert compared({**exact, name: wrong(exact[name])}, host)["wrong"]
    assert compared({n: g for n, g in exact.items() if n != name}, host)["missing"] == [name]
    assert not compared(exact, host)["wrong"]

# SPDX-License-Identifier: Apache-2.0
"""`trnlab serve-plan`: instances for a rate and a bound, laws of both, prices, what is told where nothing fits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trnlab.cli.main import main
from trnlab.cli.planning import serve_plan as command
from trnlab.fleet.gpus import efficiency
from trnlab.fleet.gpus.catalogue import instance
from trnlab.fleet.models import configurations
from trnlab.fleet.serving.offers import BATCHES, HALF, GenerationRequest, Offer, of_others, sizes
from trnlab.fleet.serving.plan import ServingQuestion, plan, simulated

CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The arguments of a small plan, whose programs are compiled once."""
    folder = tmp_path_factory.mktemp("serving")
    (folder / "small.json").write_text(json.dumps(CONFIG))
    return [str(folder / "small.json"), "--cache", str(folder), "--prompt", "100", "--output", "50"]


def _told(small, capsys, *more):
    assert main(["serve-plan", *small, "--target", "inf2.xlarge", "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_target_that_was_asked_for_and_cannot_serve_is_no_success(small, monkeypatch, capsys):
    best = command.ServingPlan.best.fget
    monkeypatch.setattr(
        command.ServingPlan,
        "best",
        property(lambda plan: {name: choice for name, choice in best(plan).items() if name != "inf2.xlarge"}),
    )
    assert main(["serve-plan", *small, "--target", "inf2.xlarge", "--qps", "40"]) == 1
    assert "inf2.xlarge cannot serve this" in capsys.readouterr().err


def test_the_command(small, capsys):
    assert main(["serve-plan", *small, "--target", "inf2.xlarge", "--qps", "40"]) == 0
    printed = capsys.readouterr().out
    for part in (
        "inf2.xlarge",
        "compiled programs",
        "roofline",
        "prefill",
        "of cache for each request",
        "on-demand, 2026-07",
    ):
        assert part in printed
    again = _told(small, capsys, "--qps", "40")
    assert again["compiled"] == 0
    assert {c["offer"]["target"] for c in again["choices"]} == {"inf2.xlarge", "p5.48xlarge", "g6e.xlarge"}
    costs = [c["usd_per_hour"] for c in again["choices"]]
    assert costs == sorted(costs)
    assert _told(small, capsys, "--qps", "40") == again


def test_both_stacks_are_answered_the_vendors_first(small, capsys):
    found = _told(small, capsys, "--qps", "40")
    vendor, ours = found["stacks"]
    assert (vendor["stack"], ours["stack"], found["stack"]) == ("vendor", "ours", "vendor")
    assert set(vendor["best"]) == set(ours["best"]) == {"inf2.xlarge"}
    mine, theirs = (each["best"]["inf2.xlarge"]["offer"]["engine"] for each in (ours, vendor))
    assert mine["prefill"] <= theirs["prefill"]  # of the newest release; by operators it takes longer
    assert mine["decode"]["64"] < 0.9 * theirs["decode"]["64"]  # the vendor's turns rows on the PE array
    assert next(c["offer"]["engine"] for c in found["choices"] if c["offer"]["target"] == "inf2.xlarge") == theirs
    alone = _told(small, capsys, "--qps", "40", "--stack", "ours")
    assert alone["compiled"] == 0
    assert alone["stacks"] == [ours]
    apart = _told(small, capsys, "--qps", "40", "--stack", "vendor,fusion=operators", "--beside", "")
    assert apart["stacks"][0]["best"]["inf2.xlarge"]["offer"]["engine"]["prefill"] > mine["prefill"]
    assert main(["serve-plan", *small, "--target", "inf2.xlarge", "--qps", "40"]) == 0
    said = capsys.readouterr().out
    assert "by whose software" in said
    assert "trnlab's compiler" in said


def test_heads_that_are_filled_up_are_told(tmp_path, capsys):
    (tmp_path / "odd.json").write_text(
        json.dumps(CONFIG | {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 192})
    )
    asked = [str(tmp_path / "odd.json"), "--no-cache", "--prompt", "100", "--output", "50", "--target", "inf2.xlarge"]
    asked += ["--ranks", "2", "--batch", "1", "--beside", "", "--stack", "ours"]
    assert main(["serve-plan", *asked]) == 0
    assert "3 heads are filled up to 4, 2 on each of 2 ranks" in capsys.readouterr().out
    assert main(["serve-plan", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choices"][0]["padded_heads"] == [{"heads": 3, "filled_up_to": 4}]


def test_copies_that_were_asked_for(small, capsys):
    """One program of the batch, on so many ranks, with such weights; less memory where they have a byte."""
    found = _told(small, capsys, "--batch", "8", "--ranks", "2", "--beside", "")["choices"]
    assert [(c["offer"]["tensor"], list(c["offer"]["engine"]["decode"])) for c in found] == [(2, ["8"])]
    stored = _told(small, capsys, "--batch", "8", "--ranks", "2", "--weights", "int8", "--beside", "")["choices"]
    assert stored[0]["offer"]["weights"] < found[0]["offer"]["weights"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (("--batch", "0"), "1 to 1024"),
        (("--ranks", "-1"), "1 to 4096"),
        (("--ranks", "3"), "ask for one of 1, 2"),
        (("--weights", "int3"), "bf16, int8, fp8"),
        (("--batch", "1024", "--prompt", "900", "--output", "100", "--ranks", "1"), ""),
    ],
)
def test_copies_that_cannot_be(small, capsys, asked, said):
    """Limit and way out are named, and the command fails."""
    code = main(["serve-plan", *small, "--target", "inf2.xlarge", "--beside", "", *asked])
    told = capsys.readouterr()
    if said:
        assert code != 0
        assert said in told.err + told.out


def test_long_prompts_come_in_chunks(small, capsys, tmp_path):
    """More than 8,192 tokens: more time than in proportion, and a line with the places before each chunk."""
    (tmp_path / "long.json").write_text(json.dumps(CONFIG | {"max_position_embeddings": 131072}))
    told = []
    for prompt in ("16384", "65536", "120000"):
        command = ["serve-plan", str(tmp_path / "long.json"), *small[1:3], "--target", "inf2.xlarge", "--beside", ""]
        assert main([*command, "--ranks", "1", "--batch", "1", "--prompt", prompt, "--json", "--p99", "1h"]) == 0
        told.append(json.loads(capsys.readouterr().out)["choices"][0]["offer"]["engine"])
    prefills, steps = ([e["prefill"] for e in told], [e["decode"]["1"] for e in told])
    assert prefills[1] > 4 * prefills[0]
    assert prefills[2] > 120000 / 65536 * prefills[1]
    assert steps[0] < steps[1] < steps[2] < 4 * steps[1]


def test_dollars_are_instances_by_price_over_tokens(small, capsys):
    for choice in _told(small, capsys, "--qps", "40")["choices"]:
        usd = choice["instances"] * choice["offer"]["price"]["usd_per_hour"]
        assert choice["usd_per_hour"] == pytest.approx(usd)
        assert choice["usd_per_million"] == pytest.approx(usd / (40 * 50 * 3600) * 1e6)
        assert choice["usd_per_million_all"] == pytest.approx(choice["usd_per_million"] / 3)


def test_more_requests_or_less_time_never_take_fewer_instances(small, capsys):
    fewest = {}
    for qps in ("20", "200", "2000"):
        for choice in _told(small, capsys, "--qps", qps)["choices"]:
            key = choice["offer"]["target"], choice["offer"]["tensor"]
            assert choice["instances"] >= fewest.get(key, 0)
            assert choice["first"]["99"] <= 2.0
            fewest[key] = choice["instances"]
    bounds = ("--qps", "2000", "--p99", "0.1s", "--p99-request", "1s")
    quick = _told(small, capsys, *bounds)["choices"]
    tight = {(c["offer"]["target"], c["offer"]["tensor"]): c["instances"] for c in quick}
    assert all(tight[key] >= fewest[key] for key in tight)


def _gpus():
    model = configurations.model("llama3-8b")
    request = GenerationRequest(2000, 300)
    return (
        model,
        request,
        [o for o in of_others("p5.48xlarge", model, request, "prefill-first") if isinstance(o, Offer)],
    )


@pytest.mark.parametrize("whole", [None, 10.0])
def test_the_number_of_instances_is_the_fewest(whole):
    """One fewer is late, or has more to do than it can."""
    model, request, _ = _gpus()
    asked = ServingQuestion(model, request, 60.0, ("g6e.xlarge",), 0.2, whole, seed=1)
    (choice,) = plan(asked).choices
    assert choice.instances > 1
    fewer = simulated(asked, choice.offer, choice.instances - 1)
    late = np.percentile(fewer.first[400:], 99) > 0.2 or np.percentile(fewer.whole[400:], 99) > (whole or np.inf)
    assert late or asked.rate >= (choice.instances - 1) * choice.offer.engine.capacity(300)


def test_batches_fill_the_memory():
    assert sizes(100, BATCHES) == [1, 4, 16, 64]
    assert sizes(50, BATCHES) == [1, 4, 16, 40]
    assert sizes(17, BATCHES) == [1, 4, 16]
    assert sizes(3, BATCHES) == [1, 3]
    assert sizes(0, BATCHES) == []


def test_a_roofline_reads_weights_and_cache_and_computes_products():
    """No step is quicker than its bytes at the full bandwidth, no prefill than its operations at the peak."""
    model, request, offers = _gpus()
    gpu = instance("p5.48xlarge").accelerator
    products = model.used - 2 * model.vocabulary * model.hidden
    for offer in offers:
        for batch, seconds in offer.engine.decode.items():
            assert (
                seconds >= (offer.weights - 2 * model.vocabulary * model.hidden + batch * offer.cache) / gpu.bandwidth
            )
        assert offer.engine.prefill >= 2 * products * request.prompt / offer.tensor / gpu.peak("bf16")
    assert [o.tensor for o in offers] == [1, 2, 4, 8]


def test_a_roofline_adds_up_over_ranks_what_the_decoders_layers_do():
    """Twice a layer, for each token what goes past it: 10 us and more each, which one rank does not take."""
    model, _, offers = _gpus()
    one, *others = offers
    for offer in others:
        exchange = efficiency.inside(instance("p5.48xlarge")).ring(HALF * model.hidden, offer.tensor, 2)
        shared = offer.engine.decode[1] - 2 * model.layers * exchange
        assert shared == pytest.approx(one.engine.decode[1] * offer.weights / one.weights, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--qps", "0"], "TRN569"),
        (["--qps", "nan"], "TRN569"),
        (["--prompt", "0"], "TRN569"),
        (["--prompt", "2000"], "TRN168"),
        (["--p99", "2"], "TRN173"),
        (["--policy", "last-first"], "TRN168"),
        (["--p99", "1s", "--p99-request", "1e-5s"], "TRN169"),
        (["--target", "trn9"], "TRN101"),
        (["--target", ",", "--beside", ""], "TRN168"),
        (["--beside", "p9.48xlarge"], "TRN101"),
    ],
)
def test_mistakes_are_told(small, arguments, code, capsys):
    assert main(["serve-plan", *small, "--target", "inf2.xlarge", *arguments]) == 2
    assert code in capsys.readouterr().err


def test_a_model_that_fits_nowhere(capsys):
    asked = ["llama3-405b", "--target", "g5.xlarge", "--beside", ""]
    assert main(["serve-plan", *asked]) == 2
    told = capsys.readouterr().err
    assert "TRN169" in told
    assert "do not fit in memory" in told

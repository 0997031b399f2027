# SPDX-License-Identifier: Apache-2.0
"""The text summary: the answers, as a terminal shows them."""

from __future__ import annotations

import pytest
from profile_samples import round_summary

from trnlab.documents.terminal import bar
from trnlab.profile import text

GOLDEN = """\
gpt-1 on trn1.2xlarge (trn1, bf16)

loss            4.0000 -> 2.5000 in 3 steps, at most 0.0100 from the CPU in fp32
one step        2 ms (1.89 ms to 2.17 ms) on the chip for 1,024 tokens; simulated here in 200 ms
throughput      512 k tokens/s, MFU 25.0%, HFU 30.0% of 92 TFLOP/s
bound by        dma 60%, tensor 30%, latency 10% of the critical path
engines active  dma      75%  ██████████████████
                tensor   50%  ████████████
                vector   25%  ██████
HBM             3 MiB read, 1 MiB written a step (0% of its bandwidth), at most 1 GiB of 16 GiB in use
cost            $0.00075 per million tokens with one of 2 cores at work ($1.34/h on-demand, 2026-07)
                price from: a price list
leans on        2 assumed figures; wrong by a factor of two they move the step: dma.start +8.3%, tensor.issue -5.0%
compiling       2.50 s, not in the cache before; 30,000 instructions executed
on the host     no operator in training, 2 operators before it"""


def test_a_finished_run() -> None:
    assert text(round_summary()) == GOLDEN


def test_an_interrupted_run_that_ran_nothing_says_that_it_is_partial() -> None:
    timed = ("step", "step_time_s", "cost", "memory", "hbm", "engines", "critical_path", "assumptions")
    cut = {k: v for k, v in round_summary().items() if k not in timed}
    cut |= {
        "status": "interrupted",
        "complete": False,
        "loss": [],
        "steps_found_by": None,
        "steps": 0,
        "compile": {"seconds": 0, "cache": None},
    }
    assert text(cut).splitlines() == [
        "gpt-1 on trn1.2xlarge (trn1, bf16), interrupted: what follows is partial",
        "",
        "loss         none reported in 31.0 s",
        "compiling    0.00 s, nothing to compile; 30,000 instructions executed",
        "on the host  no operator in training, 2 operators before it",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"loss": [4.0, None], "reference_loss_gap": None}, "loss            4.0000 -> NaN in 3 steps"),
        (
            {"loss": [], "steps_found_by": "optimizer"},
            "none reported in 31.0 s; 3 steps by the steps of the optimizer",
        ),
        (
            {
                "host_fallback_ops": {"setup": 0, "training": 1},
                "host_fallbacks": {"setup": {}, "training": {"aten::mul": 1}},
            },
            "on the host     1 operator in training (aten::mul 1), none before it",
        ),
        (
            {"instructions": 0, "host_fallback_ops": {"setup": 57, "training": 0}},
            "on the host     everything, 57 operators; nothing ran on the simulated chip",
        ),
        ({"assumptions": []}, "leans on        no assumed figure"),
        ({"tokens_per_step": 0}, "throughput      MFU 25.0%, HFU 30.0% of 92 TFLOP/s"),
        ({"compile": {"seconds": 0.1, "cache": "hit"}}, "0.10 s, from the cache;"),
    ],
)
def test_what_differs_is_said(changes: dict[str, object], line: str) -> None:
    assert line in text(round_summary(**changes))


def test_no_price_and_no_tokens() -> None:
    cost = round_summary()["cost"]
    unpriced = round_summary(cost={**cost, "usd_per_hour": None, "usd_per_million_tokens": None, "price_source": ""})
    assert "cost            no price of this instance is known" in text(unpriced)
    untold = round_summary(cost={**cost, "usd_per_million_tokens": None})
    assert "$1.34/h on-demand, 2026-07; the script does not say how many tokens it learns from" in text(untold)


@pytest.mark.parametrize(
    ("share", "shown"), [(0, ""), (1, "████"), (2, "████"), (0.5, "██"), (1 / 32, "▏"), (0.4, "█▋")]
)
def test_bars_are_exact_to_an_eighth(share: float, shown: str) -> None:
    assert bar(share, 4) == shown

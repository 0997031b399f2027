# SPDX-License-Identifier: Apache-2.0
"""What a step waits for its data is what requests come to, one by one; dollars are amounts times prices."""

from __future__ import annotations

import heapq
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trnlab import chips, datasets
from trnlab.cli.main import main
from trnlab.errors import UsageError
from trnlab.fleet.reliability import checkpoint_cost
from trnlab.fleet.reliability.data_cost import ALL, Reads, cost, kind_of
from trnlab.fleet.reliability.stores import STORES
from trnlab.storage import open_store

TRN1 = chips.target("trn1.32xlarge")
S3 = STORES["s3"]
MIB = 1 << 20
READS = Reads(
    data_bytes=8 * MIB * 8 * 40,
    request_bytes=8 * MIB,
    step_bytes=4 * MIB,
    group_bytes=64 * MIB,
    prefetch=8,
    ranks=1,
    epoch_steps=640,
)


def played(reads: Reads, step: float) -> tuple[float, float]:
    """The wait of a step in the long run, and of the first: requests one by one in `prefetch` threads, the next group
    asked for when a group begins to be used."""
    assert S3.latency is not None
    assert S3.stream is not None
    each = S3.latency.value + reads.request_bytes / S3.stream.value
    threads = [0.0] * reads.prefetch
    groups, now, waits = int(reads.data_bytes / reads.group_bytes), 0.0, []

    def asked(at: float) -> float:
        ends = []
        for _ in range(int(reads.group_bytes / reads.request_bytes)):
            ends.append(max(heapq.heappop(threads), at) + each)
            heapq.heappush(threads, ends[-1])
        return max(ends)

    ready = asked(0.0)
    for _ in range(groups):
        waits.append(max(0.0, ready - now))
        now = max(now, ready)
        ready = asked(now)
        now += reads.group_bytes / reads.step_bytes * step
    return sum(waits[1:]) / ((groups - 1) * reads.group_bytes / reads.step_bytes), waits[0]


@pytest.mark.parametrize("step", [0.001, 0.005, 0.01, 0.02, 0.1])
@pytest.mark.parametrize("prefetch", [1, 2, 8, 16])
def test_the_wait_is_that_of_requests_one_by_one(step: float, prefetch: int) -> None:
    reads = replace(READS, prefetch=prefetch, group_bytes=16 * 8 * MIB)
    found = cost("s3", reads, step, TRN1)
    assert found.bound == "requests at once"
    wait, first = played(reads, step)
    assert found.wait == pytest.approx(wait, rel=1e-9, abs=1e-12)
    assert found.first == pytest.approx(first)
    assert found.prefetch is not None
    assert cost("s3", replace(reads, prefetch=found.prefetch), step, TRN1).wait == 0
    if found.prefetch > 1:
        assert cost("s3", replace(reads, prefetch=found.prefetch - 1), step, TRN1).wait > 0


def test_nothing_is_hidden_that_is_not_read_ahead() -> None:
    alone, hidden = (cost("s3", replace(READS, prefetch=p), 10.0, TRN1) for p in (0, 1))
    assert alone.wait == pytest.approx(READS.step_bytes / alone.rate)
    assert hidden.wait == 0


def test_each_bound_holds_where_it_should() -> None:
    many = replace(READS, prefetch=10**6)
    assert cost("s3", many, 0.1, TRN1).bound == "the instance's network"
    assert cost("s3", many, 0.1, chips.target("trn1.2xlarge")).rate == pytest.approx(12.5e9 / 8)
    large = replace(many, request_bytes=1 << 30, ranks=32 * 100)
    assert cost("s3", large, 0.1, TRN1, 100).bound == "the store"
    small = replace(many, request_bytes=1000, ranks=32)
    found = cost("s3", small, 0.1, TRN1)
    assert found.bound == "requests of a prefix"
    assert found.rate * 32 / small.request_bytes == pytest.approx(5500)
    assert found.prefetch is None  # no number of requests at once gets around the limit
    assert found.wait == pytest.approx(READS.step_bytes * 32 / 5500 / 1000 - 0.1)
    slow = cost("lustre-125", replace(many, ranks=32), 0.001, TRN1)
    assert slow.bound == "the file system"
    assert slow.rate == pytest.approx(2.4 * 320e6 / 32)


def test_dollars_are_amounts_times_prices() -> None:
    found = cost("s3", replace(READS, prefetch=1), 0.001, TRN1, 2)
    assert found.requests == 320
    assert found.usd_requests == pytest.approx(320 * 0.4e-6)
    assert found.usd_month == pytest.approx(READS.data_bytes / 1e9 * 0.023)
    assert found.usd_waits == pytest.approx(found.wait * 640 * 2 * 21.5 / 3600)
    kept = cost("lustre-500", READS, 1.0, TRN1)
    assert (kept.usd_requests, kept.usd_month) == (0, pytest.approx(2.4 * 2**40 / 1e9 * 0.34))
    assert cost("s3", READS, 1.0, chips.target("trn2")).usd_waits is None
    with pytest.raises(UsageError) as caught:
        cost("s4", READS, 1.0, TRN1)
    assert caught.value.code == "TRN164"


def test_a_place_is_taken_for_a_store() -> None:
    places = ("s3://team/set", "/fsx/set", "file:///fsx/set", "memory://set")
    assert [kind_of(place) for place in places] == ["s3", "lustre-250", "lustre-250", None]


def test_the_command_says_it_of_every_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    datasets.write(open_store(tmp_path), [{"tokens": np.zeros(10**6, np.uint16)}])
    command = ["data", "cost", str(tmp_path), "--target", "2xtrn1.32xlarge", "--step", "10ms", "--batch", "2"]
    assert main([*command, "--sequence", "512"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("15 batches of 2 samples for 64 ranks an epoch")
    assert [name for name in ALL if f"on {name}: " in text] == list(ALL)
    assert main([*command, "--sequence", "512", "--store", "s3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["store"] == "s3"


def test_requests_of_many_ranks_hold_a_checkpoint_up() -> None:
    """By the limit of a prefix: 2 objects beside the tensors of each of 32,000 ranks, 4 of all."""
    small, large = checkpoint_cost.puts(10**9, 1), checkpoint_cost.puts(32_000 * 10**6, 32_000)
    assert small == -(-(10**9) // (50 << 20)) + 2 + 2 + 4
    assert large == 32_000 * 3 + 4
    text = checkpoint_cost.sentence("s3://team/run", 32_000 * 10**6, 16_000, 16, 32_000)
    assert float(re.findall(r"counts ([\d.]+) s", text)[0]) == pytest.approx(large / 3500, rel=0.01)
    assert text.endswith(f"3 of them cost $2.21 a month, one is {large:,} PUT requests for $0.48")
    assert "a file system of 2.4 TiB costs $554 a month" in checkpoint_cost.sentence("/fsx/run", 10**9, 16, 16)

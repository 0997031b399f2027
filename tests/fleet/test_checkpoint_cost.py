# SPDX-License-Identifier: Apache-2.0
"""What a run says of its checkpoints is what the planner computes."""

from __future__ import annotations

import re

import pytest

from trnlab.fleet.reliability.checkpoint_cost import sentence
from trnlab.fleet.reliability.goodput import BARRIER
from trnlab.fleet.reliability.stores import HOST_LINK, STORES


@pytest.mark.parametrize(("place", "kind"), [("s3://team/run7", "s3"), ("/fsx/run7", "lustre-250")])
def test_stall_and_upload_are_bytes_over_rates(place: str, kind: str) -> None:
    nbytes = 10**12
    text = sentence(place, nbytes, 64, 16)
    stall, upload = (float(x) for x in re.findall(r"([\d.e+]+) s", text)[:2])
    assert stall == pytest.approx(BARRIER.value + nbytes / (4 * HOST_LINK.value), rel=0.01)
    where = STORES[kind]
    assert upload == pytest.approx(where.seconds(nbytes, 4, where.size(nbytes, 4)), rel=0.01)
    assert text.startswith(f"simulated: on 64 chips and {kind}")


def test_more_chips_fail_more_often_and_save_more_often() -> None:
    few, many = (sentence("s3://x/y", 10**11, chips, 16) for chips in (16, 16384))
    assert [float(re.findall(r"every ([\d.e+]+) min", text)[0]) for text in (few, many)] == sorted(
        [float(re.findall(r"every ([\d.e+]+) min", text)[0]) for text in (few, many)], reverse=True
    )

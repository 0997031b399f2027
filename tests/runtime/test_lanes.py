# SPDX-License-Identifier: Apache-2.0
"""A step of all ranks: who waits for whom, which ranks are one lane, and what links lead from lane to lane."""

import pytest

from trnlab import documents
from trnlab.profile.pages.ranks_panel import ranks as panel
from trnlab.profile.schema import check_together
from trnlab.runtime.analysis.lanes import together


def work(ps, sent=(), whole=False):
    return {"work": ps, "label": "w", "busy": [[0, ps]], "sent": [list(each) for each in sent], "all": whole}


def meet(*ranks, ps=10, pair=False, purpose="gradient"):
    kind = "collective_permute" if pair else "all_reduce"
    return {"meet": list(ranks), "ps": ps, "purpose": purpose, "kind": kind, "pair": pair}


def test_a_collective_begins_when_the_last_of_its_group_is_there():
    found = together([[work(100), meet(0, 1)], [work(30), meet(0, 1)]])
    check_together(found)
    assert found["total_ps"] == 110
    assert [lane["waits_ps"] for lane in found["lanes"]] == [0, 70]
    assert found["lanes"][1]["sent"] == [[100, 110, "gradient", "all_reduce"]]
    assert found["links"] == [[100, 110, 0, 1, False]]


def test_ranks_that_do_the_same_are_one_lane():
    found = together([[work(100), meet(0, 1, 2, 3)]] * 4)
    assert [lane["ranks"] for lane in found["lanes"]] == [[0, 1, 2, 3]]
    assert found["links"] == []


def test_a_pipeline_waits_for_what_is_sent_and_arrows_lead_from_sender_to_receiver():
    first = [work(50), meet(0, 1, pair=True, purpose="pipeline"), meet(1, 0, pair=True, purpose="pipeline"), work(80)]
    second = [meet(0, 1, pair=True, purpose="pipeline"), work(40), meet(1, 0, pair=True, purpose="pipeline")]
    found = together([first, second])
    assert found["total_ps"] == 50 + 10 + 40 + 10 + 80
    assert found["links"] == [[50, 60, 0, 1, True], [100, 110, 1, 0, True]]
    assert [lane["waits_ps"] for lane in found["lanes"]] == [40, 50]


def test_messages_that_cross_do_not_wait_for_each_other():
    """Each rank asks for both at once, in its own order."""
    there, back = meet(0, 1, pair=True), meet(1, 0, pair=True)
    found = together([[there, back, work(5)], [back, there, work(5)]])
    assert found["unmatched"] == 0
    assert found["total_ps"] == 25


def test_programs_of_all_ranks_begin_together():
    inside = work(60, [(10, 30, "gradient", "all_reduce")], whole=True)
    found = together([[work(100), inside], [work(20), inside]])
    assert found["total_ps"] == 160
    assert [110, 130, 0, 1, False] in found["links"]


def test_what_nobody_answers_is_left_out_and_told():
    found = together([[work(10), meet(0, 1), work(5)], [work(10)]])
    assert found["unmatched"] == 1
    assert found["total_ps"] == 15


@pytest.mark.parametrize("count", [1, 64])
def test_the_panel_has_as_many_elements_for_many_lanes_as_for_one(count):
    found = together([[work(100 + 7 * r), meet(*range(count)), work(10 + r)] for r in range(count)])
    text = documents.page(documents.Document("lanes", [panel(found)])).split("<section")[1].split("</section>")[0]
    assert text.count("<canvas") == 1
    assert text.count("<") < 60
    assert len(text) < 40_000
    assert f"rank {count - 1}" in text

# SPDX-License-Identifier: Apache-2.0
"""A plan's page holds what the plan says, needs nothing else, and its commands plan what they stand beside."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from html import unescape

import numpy as np
import pytest

from trnlab import documents
from trnlab.cli import commands, options
from trnlab.cli.planning import plan_answer as command_line
from trnlab.fleet import Question, plan
from trnlab.fleet.comparison.alternatives import others
from trnlab.fleet.comparison.contenders import PlanAccuracy
from trnlab.fleet.layers.sizes import Attention, Dense
from trnlab.fleet.models.transformer import Block, Model
from trnlab.fleet.planning.overheads import overheads
from trnlab.fleet.planning.plan import job_of
from trnlab.fleet.planning.sensitivity import sensitivities
from trnlab.fleet.reliability.goodput import Reliability
from trnlab.fleet.report.document import document
from trnlab.fleet.report.pictures import command, held
from trnlab.fleet.report.table import to_json
from trnlab.fleet.search import pipeline
from trnlab.fleet.search.layout import pinned

SMALL = Model("small", 256, ((2, Block(256, Attention(4, 2, 64, 64), Dense(512))),), 128, 512)


def text(plan):
    return documents.text(document(plan))


def page(plan, *beside):
    return documents.page(document(plan, *beside))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    asked = Question(SMALL, 1e9, ("trn1.32xlarge",), (1, 2), batch=64, fixed=pinned("tp=2,mb=1,recompute=none"))
    return plan(asked, tmp_path_factory.mktemp("plans"))


@pytest.fixture(scope="module")
def html(found):
    return page(found)


def test_it_needs_nothing_from_elsewhere(html):
    assert not re.search(r"(src|href)=[\"']?https?:", html)
    assert "prefers-color-scheme: dark" in html


def test_every_candidate_is_a_row_with_its_command(found, html):
    rows = re.findall(r'<tr><td.*?data-command="(.*?)"', html.split('id="candidates"')[1])
    assert [unescape(row) for row in rows] == [command(found, c) for c in found.best(len(found))]


def test_a_command_asks_for_its_candidate(found):
    words = shlex.split(command(found, found.chosen))[1:]
    words[1] = "llama3-8b"  # a model by name, in the place of ours
    assert options.stacks_of(commands.parsed(words)) == [found.question.stack]
    asked = command_line.question(commands.parsed(words))
    layout = found.chosen.step.layout
    assert asked.fixed == pinned(layout.spelled())
    assert asked.instances == (found.chosen.cluster.instances,) * 2
    assert (asked.tokens, asked.batch) == (found.question.tokens, found.question.batch)


def test_more_of_anything_never_costs_more(found):
    """Bandwidth, faster links and cores, devices that fail less: never dearer; a dearer hour: dearer."""
    for x in sensitivities(found):
        assert x.less.usd is not None
        assert x.base.usd is not None
        assert x.more.usd is not None
        if x.name.startswith("price"):
            assert x.less.usd < x.base.usd < x.more.usd
        else:
            assert x.more.usd <= x.base.usd * (1 + 1e-9)
            assert x.base.usd <= x.less.usd * (1 + 1e-9)


def test_memory_over_time_peaks_where_the_plan_says(found):
    """The first rank of a pipeline keeps as many microbatches as `pipeline.held` has, and none in the end."""
    for c in found.best(len(found)):
        layout, kept = c.step.layout, held(found, c)
        count = np.array([layout.microbatches(found.question.batch)])
        assert max(kept) == pipeline.held(layout.pipeline, count, layout.interleave)[0, 0]
        assert kept[0] == kept[-1] == 0


def test_others_stand_beside_it_with_bands(found):
    beside = others(found.question, ["p4d.24xlarge"], found.chosen.bill.days)
    html = page(found, beside, PlanAccuracy((-0.2, 0.4)))
    dollars = html.split("Dollars, beside others")[1].split("</section>")[0]
    assert "p4d.24xlarge, on-demand" in dollars
    assert "trn1.32xlarge, on-demand" in dollars
    assert "Energy, beside others" in html
    assert html.index("Energy, beside others") < html.index("What it leans on")


def test_what_a_step_waits_for_besides(found):
    c = found.chosen
    beside = overheads(found.question, c)
    assert beside.checkpoint == pytest.approx(c.after_failures.stall * c.step.total / c.after_failures.interval)
    sequences = found.question.batch / c.step.layout.data
    assert beside.brought == pytest.approx(sequences * 128 * 8 * 2 / 16e9)  # two ranks of a chip, tokens and labels
    assert beside.input == 0


def test_goodput_is_that_of_the_plans_own_step(found):
    """A step that is longer than the time between saves is lost whole; shorter ones change nothing."""
    c, how = found.chosen, Reliability()
    job = job_of(found.question, c.cluster, c.step.total)
    assert c.goodput == job.goodput(how).share
    every = job.goodput(how).interval
    steps = np.array([0.1, every / 2, every * 4, every * 4, every * 9])
    shares = job.shares(how, steps)
    assert list(shares) == [replace(job, step=s).goodput(how).share for s in steps]
    assert shares[0] == shares[1] > shares[2] == shares[3] > shares[4]


def test_an_epoch_has_a_price(found):
    asked = replace(found, question=replace(found.question, epoch=5e8))
    per = asked.chosen.bill.usd_per_million
    assert to_json(asked)["besides"]["usd_per_epoch"] == pytest.approx(per * 500)
    assert "$ an epoch" in page(asked)
    assert "$/epoch" in text(asked)

# SPDX-License-Identifier: Apache-2.0
"""Searches answer what they answered before: every figure of every layout, on stand-in costs of programs and wires.

`python tests/fleet/test_searches_again.py` writes `stored_searches.json` anew, where a search is to compile something
else than before. Costs are made up so that what is compared is the search, and not what programs of today take.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trnlab import chips
from trnlab.fabric.cluster import Cluster
from trnlab.fleet import model
from trnlab.fleet.arrays import distinct, rows_of
from trnlab.fleet.costs.exchange import Exchange
from trnlab.fleet.costs.programs import MicrobatchCost, Programs
from trnlab.fleet.search import candidates as searching
from trnlab.fleet.search.candidates import SearchResult, search
from trnlab.fleet.search.confirmed import are_one_program
from trnlab.fleet.search.layout import columns_of
from trnlab.fleet.search.shard_costs import Training, shard_keys_of
from trnlab.fleet.search.steps import Planner
from trnlab.runtime.session import Session

FILE = Path(__file__).with_name("stored_searches.json")
BEFORE = {"MICROBATCHES": (1, 2, 4, 8), "INTERLEAVES": (1, 2, 3, 4, 6, 8)}
ASKED = {  # model, target, instances, batch, sequence
    "llama3-70b": ("llama3-70b", "trn2.48xlarge", 16, 1024, 8192),
    "a long sequence": ("llama3-8b", "trn1.32xlarge", 4, 1024, 32768),
    "experts": ("mixtral-8x7b", "trn2.48xlarge", 8, 1024, 4096),
    "experts and two kinds of layers": ("deepseek-v3", "trn2.48xlarge", 32, 1024, 4096),
    "100,000 chips": ("llama3-405b", "trn2.48xlarge", 6250, 10000, 8192),
}
SHORT = ("bert-large", "trn1.32xlarge", 2, 4096, 512)


class MadeUp(Programs):
    """Costs by formulas without meaning, different for all that a share is. power: of the sequences at a time; most:
    tokens of so many as gain by it."""

    power, most = 0.93, 1 << 40

    def stage(self, model, blocks, share, first=False, last=False):
        ways, sequences = (
            share.tensor * share.context,
            share.batch * min(share.batch, max(self.most // share.tokens, 1)) ** (self.power - 1),
        )
        network = sum(getattr(block.network, "count", 3) * 0.013 for block in blocks) / share.expert
        work = (
            (len(blocks) + 0.37 * (first + last) + network)
            * sequences
            * (1.1 if share.attention == "remade" else 1.3 if share.block == "again" else 1)
        )
        return MicrobatchCost(
            0.0212 * work / ways,
            0.0411 * work / ways,
            0.00417 * work / ways**0.7,
            int(5e8 * work / ways),
            int(1e8 * sequences),
            1e13 * work / ways,
            gathered=int(7e7 * len(blocks) * share.sharded),
            late=0.0173 * work / ways,
        )

    def _flops(self, model, block, share):
        return 1e13 * share.batch / share.context / share.tensor

    def update(self, parameters, rounded=True):
        return parameters * 1e-11

    def of_parts(self, model, ranks, make):
        return len(make.__name__) * 1e-3 + model.parameters / ranks * 1e-11


class Wires(Exchange):
    """Times by a formula without meaning."""

    def _timed(self, kind, stride, count, nbytes, instances):
        return 1e-6 * len(kind) * count**0.5 + nbytes / 1e11 * (1 + stride % 7 / 10) * instances**0.1


def _planner(target: str, instances: int) -> Planner:
    session = Session(chips.target(target))
    return Planner(Cluster(session.target, instances), MadeUp(session), Wires(session.target))


def _found(name: str) -> SearchResult:
    architecture, target, instances, batch, sequence = ASKED[name]
    return search(_planner(target, instances), Training(model(architecture), batch, sequence))


def _answer(found: SearchResult) -> dict:
    """Sums of all columns, weighted by the place in the list, and the best layouts."""
    steps = found.steps
    weights = 1 + np.arange(len(steps)) % 97
    columns = {
        **steps.seconds,
        **{f"{name} bytes": column for name, column in steps.bytes.items()},
        "flops": steps.flops,
        "exact": steps.exact,
    }
    return {
        "looked_at": found.looked_at,
        "refused": dict(found.refused),
        "fit": len(steps),
        "sums": {name: float((column * weights).sum()) for name, column in columns.items()},
        "best": [
            [steps.layouts.layout(int(i)).spelled(), float(steps.total[i]), float(steps.memory[i])]
            for i in np.argsort(steps.total, kind="stable")[:5]
        ],
    }


@pytest.mark.parametrize("name", ASKED)
def test_every_figure_is_what_it_was(name, monkeypatch):
    for column, values in BEFORE.items():
        monkeypatch.setattr(searching, column, values)
    was, now = json.loads(FILE.read_text())[name], _answer(_found(name))
    for key in ("looked_at", "refused", "fit"):
        assert now[key] == was[key]
    assert now["sums"] == pytest.approx(was["sums"], rel=1e-12)
    assert [layout for layout, _, _ in now["best"]] == [layout for layout, _, _ in was["best"]]
    assert [pair[1:] for pair in now["best"]] == [pytest.approx(pair[1:], rel=1e-12) for pair in was["best"]]


@pytest.mark.parametrize(
    ("name", "gain"),
    [("llama3-70b", 1.06), ("llama3-70b", 0.98), ("a long sequence", 1.0), ("short", 0.92), ("experts", 0.98)],
)
def test_the_best_is_compiled_as_it_is_and_is_the_best_of_all(name, gain, monkeypatch):
    """Whatever larger microbatches gain, of few tokens, or lose: `gain` is the work of twice as many sequences, over
    twice that of one. The oracle compiles everything."""
    architecture, target, instances, batch, sequence = {**ASKED, "short": SHORT}[name]
    monkeypatch.setattr(MadeUp, "most", searching.TOKENS if gain < 1 else 1 << 40)
    monkeypatch.setattr(MadeUp, "power", 1 + np.log2(gain))
    monkeypatch.setattr(searching, "INTERLEAVES", (1,))
    training = Training(model(architecture), batch, sequence)
    found = search(_planner(target, instances), training).steps
    best = found.step(int(found.total.argmin()))
    assert best.exact
    planner = _planner(target, instances)
    alone = planner.step(training, best.layout)
    assert (alone.total, alone.seconds, alone.bytes) == (best.total, best.seconds, best.bytes)
    layouts = searching._possible(SearchResult(), planner, training, {})
    whole = planner.steps(
        training, layouts, {piece: planner.parts(training, piece) for piece in shard_keys_of(layouts)[0]}
    )
    every = whole.total[whole.memory <= whole.room].min()
    assert best.total <= every * 1.05


def test_what_takes_longer_as_a_whole_gives_its_place_to_what_is_compiled():
    """The best of parts turns out to take twice as long; so does what differs from it in what is made again."""
    training, planner = Training(model("llama3-70b"), 1024, 8192), _planner("trn2.48xlarge", 16)
    rounds = search(planner, training, {"zero": 3}).rounds
    steps = rounds.run()
    best = steps.step(int(steps.total.argmin()))
    assert are_one_program(training.model, columns_of([best.layout])).all()
    assert not rounds.knows(best.layout)
    seconds = {name: 2 * spent for name, spent in best.seconds.items()}
    after = rounds.learn(best.layout, replace(best, seconds=seconds, total=2 * best.total))
    assert rounds.knows(best.layout)
    first = int(after.total.argmin())
    assert after.exact[first]
    assert after.layouts.layout(first) != best.layout
    found = {after.layouts.layout(i): float(after.total[i]) for i in range(len(after))}
    assert found[best.layout] == pytest.approx(2 * best.total)
    assert found[replace(best.layout, recompute="selective")] >= found[best.layout] * (1 - 1e-9)


@pytest.mark.parametrize("largest", [5, 10**6, 2**61])
def test_rows_are_told_apart_as_by_comparing_them(largest):
    """Also where columns are too wide to be packed into one number."""
    random = np.random.default_rng(largest % 97)
    columns = [random.choice(random.integers(0, largest, 4), 200) for _ in range(3)]
    found, which = distinct(*columns)
    assert [tuple(row) for row in found.tolist()] == sorted(set(zip(*(column.tolist() for column in columns))))
    assert (found[which] == np.stack(columns, axis=1)).all()
    assert [sorted(rows.tolist()) for rows in rows_of(which)] == [
        np.flatnonzero(which == i).tolist() for i in range(len(found))
    ]


def test_of_no_rows_there_are_none():
    none = np.zeros(0, np.int64)
    found, which = distinct(none, none)
    assert found.shape == (0, 2)
    assert list(rows_of(which)) == []


if __name__ == "__main__":
    for column, values in BEFORE.items():
        setattr(searching, column, values)
    FILE.write_text(json.dumps({name: _answer(_found(name)) for name in ASKED}, indent=1) + "\n")
    sys.exit(0)

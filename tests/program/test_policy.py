# SPDX-License-Identifier: Apache-2.0
"""The list of what the hardware's compiler does: how options are chosen, told, and what depends on them."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

import trnlab.nki.neuronxcc as nki
import trnlab.nki.neuronxcc.language as nl
from trnlab import policy
from trnlab.cli.kernels.passes import listed
from trnlab.errors import UsageError
from trnlab.nki import schedule
from trnlab.nki.target import default_chip
from trnlab.policy import AS_WRITTEN, SCHEDULED
from trnlab.sim.timing import time_routine

X = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)


@pytest.fixture
def undecided(monkeypatch):
    """A process in which nobody has chosen a policy."""
    monkeypatch.delenv(policy.VARIABLE, raising=False)
    monkeypatch.setattr(policy, "_configured", [])


def test_options_follow_a_name_or_stand_alone():
    assert policy.parse("as-written") is AS_WRITTEN
    assert policy.parse("scheduled") == SCHEDULED
    assert (
        policy.parse("reuse=off") == policy.parse(" scheduled , reuse = off ") == SCHEDULED.with_options(reuse=False)
    )
    assert policy.parse("as-written,window=64").window == 64
    assert str(policy.parse("window=64,reuse=off")) == "scheduled,window=64,reuse=off"
    assert policy.parse(str(AS_WRITTEN.with_options(reuse=True))).values() == {**AS_WRITTEN.values(), "reuse": True}


@pytest.mark.parametrize(
    ("text", "limit"),
    [("fast", "as written"), ("speed=2", "reuse = on, off"), ("window=0", "from 1"), ("reuse=maybe", "on, off")],
)
def test_what_does_not_exist_is_refused_with_what_does(text, limit):
    with pytest.raises(UsageError, match=limit) as raised:
        policy.parse(text)
    assert raised.value.code == "TRN106"
    with pytest.raises(UsageError, match="TRN106"), policy.use(text):
        pass


def test_every_field_of_a_policy_is_an_option_that_the_list_shows():
    names = [o.name for o in policy.options()]
    assert names == [f.name for f in fields(policy.Policy)][1:]
    assert all(f"    {name} " in listed() for name in names)
    assert all(o.stage in policy.STAGES and o.about and not o.about.endswith(".") for o in policy.options())
    assert all(o.default in o.choices for o in policy.options() if isinstance(o.default, str))
    assert all(value != o.default for o in policy.options() for value in o.alternatives)


def test_as_written_makes_nothing_but_room():
    on = {name for name, value in AS_WRITTEN.values().items() if value is True}
    assert on == {o.name for o in policy.options() if o.stage == policy.ROOM and o.default is True}


def test_defaults_depend_on_chip_and_dialect(monkeypatch):
    number = policy.Option("window", policy.TIME, "", 8, {"trn1": 1, "neuronxcc": 2, "trn1/neuronxcc": 3})
    places = [("trn2", "nki"), ("trn1", "nki"), ("trn2", "neuronxcc"), ("trn1", "neuronxcc")]
    assert [number.value_for(*place) for place in places] == [8, 1, 2, 3]
    monkeypatch.setattr(policy, "options", lambda: (number,))
    policy.parse.cache_clear()
    assert [policy.parse("scheduled", *place).window for place in places[1:]] == [1, 2, 3]
    assert policy.parse("window=9", "trn1", "nki").window == 9
    policy.parse.cache_clear()


def test_the_new_dialect_keeps_what_is_written(undecided):
    """Its compiler keeps order and memory as developers specify; work that is written twice is done twice."""
    on = {name for name, value in policy.chosen("trn2", "nki").values().items() if value is True}
    off = {name for name, value in policy.chosen("trn2", "neuronxcc").values().items() if value is True} - on
    assert {"accumulate", "loads", "reuse"} <= off
    assert {"versions", "demand", "spill", "reorder"} <= on


def test_the_innermost_choice_counts(undecided, monkeypatch):
    assert policy.chosen() == SCHEDULED
    monkeypatch.setenv(policy.VARIABLE, "reuse=off")
    assert not policy.chosen().reuse
    policy.configure("as-written")
    assert policy.chosen() == AS_WRITTEN
    with policy.use(versions=True):
        assert policy.chosen() == AS_WRITTEN.with_options(versions=True)
        with policy.use("scheduled", window=4):
            assert policy.chosen() == SCHEDULED.with_options(window=4)
    assert policy.chosen() == AS_WRITTEN


@nki.jit
def doubled(x):
    """Adds the same product twice, which reuse finds."""
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tile = nl.load(x)
    nl.store(out, nl.add(nl.multiply(tile, 3.0), nl.multiply(tile, 3.0)))
    return out


def test_a_recording_is_kept_for_the_options_that_it_depends_on(undecided):
    plain = doubled.trace(X)
    with schedule(reuse=False):
        assert len(doubled.trace(X).routine) == len(plain.routine) + 1
    with schedule(window=4):
        assert doubled.trace(X) is plain, "when it runs is decided later"
    assert doubled.trace(X) is plain


def test_what_each_pass_did_is_kept_with_the_routine(undecided):
    (change,) = (c for c in doubled.trace(X).routine.changes if c.option == "reuse")
    assert change.before.instructions == change.after.instructions + 1
    assert change.before.tiles == change.after.tiles + 1
    assert change.before.moved == change.after.moved == 2 * X.nbytes


def test_a_time_is_that_of_the_policy_under_which_it_is_asked_for(undecided):
    for text in ("as-written", "scheduled", "balance=off"):
        with policy.use(text):
            asked = doubled.timeline(X)
        chip = default_chip()
        with policy.use(text):
            assert asked.same_times(time_routine(doubled.trace(X).routine, chip, policy=policy.parse(text)))

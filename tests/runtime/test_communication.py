# SPDX-License-Identifier: Apache-2.0
"""What a run says of its collectives: time by kind, what is exposed, the busiest link."""

from types import SimpleNamespace

import pytest

from trnlab import chips
from trnlab.collectives import Collective
from trnlab.compiler import compile
from trnlab.errors import UsageError
from trnlab.fabric.world import World
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import float32
from trnlab.program.communication import collective_of
from trnlab.runtime.communication import UncapturedCollective, communication
from trnlab.runtime.session import from_environment
from trnlab.sim.timing import outline_of, time_program

CHIP, WORLD = chips.get("trn1"), World("trn1.32xlarge", 4)


def executable(products, overlap):
    """A large sum over the ranks beside so many products that do not wait for it."""
    b = GraphBuilder("beside")
    x, y, w = b.input("x", (1 << 18,), float32), b.input("y", (256, 256), float32), b.input("w", (256, 256), float32)
    b.output(b.all_reduce([x], ((0, 1, 2, 3),))[0])
    for _ in range(products):
        y = b.tanh(b.matmul(y, w))
    b.output(y)
    options = {"precision": "fp32", "cluster": WORLD.cluster_name, "ranks": WORLD.size, "overlap": overlap}
    program = compile(b.build(), CHIP, options)
    timeline = time_program(program, CHIP)
    return SimpleNamespace(program=program, timeline=timeline, outline=outline_of(timeline, program))


def test_time_is_the_fabrics_and_splits_into_hidden_and_exposed():
    made = executable(6, "data")
    found = communication([(made, 3)], 3 * made.timeline.total / 1e12)
    asked = next(c for c in map(collective_of, made.program.routines) if c is not None)
    cost = WORLD.cost(asked, 1 << 20)
    assert found["time_s"] == pytest.approx(3 * cost.seconds, rel=1e-6)
    assert found["hidden_s"] + found["exposed_s"] == pytest.approx(found["time_s"])
    assert found["kinds"]["all_reduce"]["count"] == 3
    assert found["purposes"]["tensor"]["count"] == 3
    assert found["ratio"] == pytest.approx(found["time_s"] / (3 * made.timeline.total / 1e12 - found["exposed_s"]))
    assert found["busiest_link"]["link"] == cost.busiest
    assert found["busiest_link"]["busy_s"] == pytest.approx(3 * cost.busy)


def test_links_are_told_by_class_and_add_up_to_what_the_schedule_puts_on_them():
    made = executable(1, "data")
    asked = next(c for c in map(collective_of, made.program.routines) if c is not None)
    cost, network = WORLD.cost(asked, 1 << 20), WORLD.network
    found = communication([(made, 2)], 1.0)["links"]
    for name, kinds in (("NeuronLink", ("wire", "far")), ("DMA", ("dma",)), ("HBM", ("hbm",))):
        numbers = [n for n in range(len(network.rates)) if network.kind(n) in kinds]
        assert found[name]["class_bytes"] == pytest.approx(2 * sum(cost.loads[n] for n in numbers))
        assert found[name]["busy_s"] == pytest.approx(2 * max(cost.loads[n] / network.rates[n] for n in numbers))
    assert "EFA" not in found


def test_what_is_asked_for_outside_of_programs_is_exposed_and_counts_by_its_purpose():
    asked = Collective("all_reduce", ((0, 1, 2, 3),))
    cost = WORLD.cost(asked, 4096)
    outside = [UncapturedCollective(asked, "gradient", 4096, 4096, cost)] * 3
    found = communication([], 6 * cost.seconds, outside, WORLD)
    assert found["purposes"]["gradient"]["exposed_s"] == pytest.approx(3 * cost.seconds)
    assert found["gradient_share"] == pytest.approx(0.5)
    assert found["flagged"]
    assert not communication([], 6 * cost.seconds, outside, WORLD, 0.6)["flagged"]
    assert found["ratio"] == pytest.approx(1.0)


def test_compute_beside_hides_and_waiting_exposes_all():
    beside, apart = (communication([(executable(6, p), 1)], 1.0) for p in ("data", "none"))
    assert beside["hidden_s"] > 0
    assert apart["exposed_s"] == pytest.approx(apart["time_s"])
    assert beside["exposed_s"] < apart["exposed_s"]


def test_steps_of_one_core_say_nothing():
    assert communication([(SimpleNamespace(program=SimpleNamespace(ranks=1)), 1)], 1.0) is None


def test_a_threshold_that_is_none_is_refused():
    with pytest.raises(UsageError, match="TRN192"):
        from_environment({"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_COMM_THRESHOLD": "half"})


def test_a_size_of_buckets_that_is_none_is_refused():
    with pytest.raises(UsageError, match="TRN268"):
        from_environment({"TRNLAB_TARGET": "trn1.2xlarge", "TRNLAB_BUCKET_MIB": "many"})

# SPDX-License-Identifier: Apache-2.0
"""What faults of the network do to a step: it is never faster, and what is said of it is what the fabric says."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from trnlab import chips
from trnlab.collectives import Collective
from trnlab.compiler import compile
from trnlab.errors import UsageError
from trnlab.fabric.world import World
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import float32
from trnlab.policy import chosen
from trnlab.runtime import session
from trnlab.runtime.analysis import performance
from trnlab.runtime.analysis.traffic import Fabric
from trnlab.runtime.communication import UncapturedCollective
from trnlab.runtime.faults import DegradedStep, compare, on, require_links
from trnlab.runtime.step_cost import StepPrograms
from trnlab.sim.timing import outline_program

CHIP, CLUSTER, RANKS = chips.get("trn1"), "2xtrn1.32xlarge", 4
EVERYBODY, WITHIN = ((0, 1, 2, 3),), ((0, 1), (2, 3))


@pytest.fixture(scope="module")
def executable():
    """A sum over both instances, and one within each of them."""
    b = GraphBuilder("sums")
    for name, groups in (("far", EVERYBODY), ("near", WITHIN)):
        b.output(b.all_reduce([b.input(name, (1 << 20,), float32)], groups)[0])
    options = {"precision": "fp32", "cluster": CLUSTER, "ranks": RANKS, "bucket_mib": 0}
    program = compile(b.build(), CHIP, options)
    outline = outline_program(program, CHIP)
    return SimpleNamespace(
        program=program,
        chip=CHIP,
        policy=chosen(),
        outline=outline,
        total_ps=outline.total,
        outlined=lambda changed: outline_program(changed, CHIP),
    )


def test_a_slow_card_slows_what_takes_it_and_nothing_else(executable):
    found = compare(StepPrograms([(executable, 3)]), ("efa:node1.rail0=quarter",))
    well, sick = World(CLUSTER, RANKS), World(CLUSTER, RANKS, ("efa:node1.rail0=quarter",))
    asked = Collective("all_reduce", EVERYBODY)
    (far,) = found.slowed
    assert (far.kind, far.ranks, far.bytes, far.count) == ("all_reduce", 4, 4 << 20, 3)
    assert far.healthy_s == well.cost(asked, 4 << 20).seconds
    assert far.degraded_s == sick.cost(asked, 4 << 20).seconds
    assert far.link == found.link
    assert found.link.startswith("efa:node1.rail0")
    assert found.healthy_s == pytest.approx(3 * executable.outline.total / 1e12)
    assert found.degraded_s - found.healthy_s == pytest.approx(3 * (far.degraded_s - far.healthy_s), rel=0.01)
    assert DegradedStep.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_several_faults_are_no_better_than_one(executable):
    few = compare(StepPrograms([(executable, 1)]), ("efa:node0.rail0=half",))
    more = compare(StepPrograms([(executable, 1)]), ("efa:node0.rail0=half", "dma:node1.0=0.1"))
    assert few.healthy_s < few.degraded_s < more.degraded_s
    assert {each.ranks for each in more.slowed} == {2, 4}


def test_a_run_that_exchanges_between_programs_is_told_of_its_programs(executable):
    asked = Collective("all_reduce", EVERYBODY)
    outside = [UncapturedCollective(asked, "gradient", 1 << 20, 1 << 20, World(CLUSTER, RANKS).cost(asked, 1 << 20))]
    here = SimpleNamespace(counters=SimpleNamespace(fabric=None), faults=("efa:node0.rail0=half",))
    here.comm_threshold, here.communicator = 0.25, None
    step = StepPrograms([(executable, 1)], outside)
    found = performance._together(SimpleNamespace(session=here), step)["faults"]
    assert found["healthy_s"] == pytest.approx(step.seconds - step.outside_s)
    assert found["sick_s"] > found["healthy_s"]


def test_a_fault_elsewhere_changes_nothing(executable):
    found = compare(StepPrograms([(executable, 1)]), ("efa:node1.rail7=down",))
    assert (found.slowed, found.slowdown) == ([], 1.0)


def test_a_link_that_is_down_ends_the_job(executable):
    found = compare(StepPrograms([(executable, 1)]), ("efa:node1.rail0=down",))
    assert (found.degraded_s, found.slowdown) == (None, None)
    assert [(each.ranks, each.degraded_s) for each in found.slowed] == [(4, None)]
    assert found.link.startswith("efa:node1.rail0")
    with pytest.raises(UsageError, match=r"efa:node1\.rail0") as error:
        require_links(on(executable.program, found.faults))
    assert error.value.code == "TRN187"


def test_links_that_the_network_lacks_are_refused_before_anything_runs(executable):
    for fault in ("efa:node1.rail9=down", "efa:node7.rail0=half", "link:0-4=half", "efa:node0.rail0=fast"):
        with pytest.raises(UsageError) as error:
            compare(StepPrograms([(executable, 1)]), (fault,))
        assert error.value.code == "TRN184"
        here = session.from_environment({"TRNLAB_TARGET": CLUSTER, "TRNLAB_FAULT": fault})
        with pytest.raises(UsageError, match="TRN184"):
            here.check_faults(RANKS)
    with pytest.raises(UsageError, match="TRN195"):
        here.check_faults(1)


def test_collectives_outside_of_programs_are_counted_on_both_networks():
    faults = "efa:node1.rail0=half,dma:node0.0=half"
    here = session.from_environment({"TRNLAB_TARGET": CLUSTER, "TRNLAB_FAULT": faults})
    fabric, healthy = Fabric(here, RANKS, 0), World(CLUSTER, RANKS)
    asked, source = Collective("all_reduce", EVERYBODY), np.ones(1 << 20, np.float32)
    fabric.count(asked, source, "script")
    record = fabric.record()
    assert record["faults"] == faults.split(",")
    assert record["healthy_seconds"] == healthy.cost(asked, source.nbytes).seconds < record["seconds"]

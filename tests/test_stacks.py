# SPDX-License-Identifier: Apache-2.0
"""Stacks: how texts name them, what releases have, and that none changes a value."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.compiled import run
from trnlab import chips, compiler, stacks
from trnlab.errors import UsageError
from trnlab.fleet.costs.programs import Programs
from trnlab.fleet.layers.shares import ShardSpec
from trnlab.fleet.models.configurations import model
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import float32
from trnlab.runtime.session import Session
from trnlab.runtime.step_cost import host_wait


def test_the_newest_release_is_meant_where_none_is_named():
    stack = stacks.parse("vendor")
    assert (stack.release, stack.library, stack.attention) == (stacks.NEWEST, "nxd", stacks.KERNEL)
    assert stacks.parse("ours") == stacks.OWN


@pytest.mark.parametrize(
    ("release", "attention", "products"),
    [
        ("2.6", "softmax", "bf16"),
        ("2.15", "softmax", "bf16"),
        ("2.16", "softmax", "bf16"),
        ("2.18.1", "softmax", "bf16"),
        ("2.19", "kernel", "bf16"),
        ("2.26", "kernel", "bf16"),
        ("2.27", "kernel", "told"),
        ("3.0", "kernel", "told"),
    ],
)
def test_a_release_has_what_was_the_last_to_change(release, attention, products):
    stack = stacks.parse(f"vendor,release={release}")
    assert (stack.attention, stack.products) == (attention, products)


def test_a_choice_is_made_otherwise_by_name():
    stack = stacks.parse("vendor,release=2.13,library=axlearn,fusion=loops,tracing_us=7.5")
    assert (stack.fusion, stack.tracing_us, stack.residual, stack.again) == ("loops", 7.5, "whole", "network")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "theirs",
        "vendor,",
        "vendor,fusion",
        "vendor,fusion=on",
        "vendor,release=new",
        "vendor,release=2",
        "vendor,library=megatron",
        "vendor,speed=2",
        "vendor,tracing_us=-1",
        "ours,tracing_us=inf",
        "vendor,tracing_us=x",
    ],
)
def test_what_cannot_be_is_refused_with_what_may_be(text):
    with pytest.raises(UsageError) as said:
        stacks.parse(text)
    assert said.value.code == "TRN587"
    assert said.value.limit


def test_each_value_of_the_vendor_says_what_it_rests_on():
    for choice in stacks.choices():
        for since in (*choice.vendor, *choice.libraries.values()):
            assert since.basis in (stacks.DOCUMENTED, stacks.INFERRED, stacks.ASSUMED)
            assert since.source
            assert not choice.choices or since.value in choice.choices


def _block(causal=True):
    """Attention, a residual and the rest of a norm."""
    b = GraphBuilder("block")
    q, k, v, x = (b.input(name, (1, 2, 64, 32), float32) for name in "qkvx")
    out = b.add(b.attention(q, k, v, causal=causal)[0], x)
    mean = b.reduce(b.multiply(out, out), (-1,), keepdims=True)
    b.output(b.multiply(out, b.broadcast_to(b.rsqrt(b.add(mean, 1.0)), out.shape)))
    return b.build()


def _computed(graph, options):
    chip = chips.get("trn1")
    program = compiler.compile(graph, chip, {"precision": "fp32", **options})
    rng = np.random.default_rng(1)
    given = [rng.standard_normal(v.shape, np.float32) for v in graph.inputs]
    return program, run(program, graph, given)[0]


@pytest.mark.parametrize(
    "options", [{"attention": "softmax"}, {"attention": "written"}, {"fusion": "operators"}], ids=str
)
def test_no_stack_changes_a_value(options):
    plain, expected = _computed(_block(), {})
    other, found = _computed(_block(), options)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    assert len(other.calls) > len(plain.calls)


def test_a_layer_of_operators_takes_longer_and_traces_its_operators():
    known, share = model("bert-large"), ShardSpec(4, 128)
    block = known.stacks[0][1]
    ours, theirs = (
        Programs(Session(chips.target("trn1.2xlarge"), stack=stacks.parse(text))).layer(known, block, share)
        for text in ("ours", "vendor,fusion=operators")
    )
    assert theirs.forward > ours.forward
    assert theirs.backward > ours.backward
    assert theirs.traced == ours.traced > 100
    assert theirs.flops == ours.flops


@pytest.mark.parametrize(
    ("runs", "waits"),
    [
        ([(2.0, 10.0, 1)], 2.0),  # the first is traced while nothing runs
        ([(2.0, 10.0, 5)], 2.0),  # the others are behind it
        ([(10.0, 2.0, 5)], 42.0),  # a host that is slower than the device holds it up each time
        ([(2.0, 10.0, 1), (15.0, 1.0, 1)], 7.0),  # a short step's update: 17 traced, 11 done
        ([(2.0, 10.0, 3), (15.0, 1.0, 1)], 2.0),
        ([(0.0, 10.0, 3)], 0.0),
    ],
)
def test_the_device_waits_for_what_the_host_has_not_traced(runs, waits):
    assert host_wait(runs) == pytest.approx(waits)
    ended = traced = 0.0  # one execution at a time
    for trace, device, times in runs:
        for _ in range(times):
            traced += trace
            ended = max(ended, traced) + device
    assert host_wait(runs) == pytest.approx(ended - sum(device * times for _, device, times in runs))

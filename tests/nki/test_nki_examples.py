# SPDX-License-Identifier: Apache-2.0
"""The examples of instruction pages: each runs on every generation that has the instruction, checks on."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import trnlab.nki as nki
import trnlab.nki.isa as nisa
import trnlab.nki.language as nl
from trnlab import chips
from trnlab.isa import REGISTRY, describe
from trnlab.isa.documentation import generations
from trnlab.nki import examples

GENERATIONS = ("trn1", "trn2", "trn3")


@pytest.mark.parametrize("name", REGISTRY)
def test_an_example_runs_on_every_generation_that_has_the_instruction(name):
    instr, ran = REGISTRY[name], []
    for chip in map(chips.get, GENERATIONS):
        if examples.runs_on(instr, chip):
            kernel = examples.example_kernel(instr, chip)
            kernel()
            assert any(name.endswith(op.name) for op in kernel.timeline().ops) or name.startswith("register_")
            ran.append(chip.name)
    assert ran, "some generation has it"


@pytest.mark.parametrize("name", REGISTRY)
def test_the_page_shows_the_example_and_each_generation(name):
    page = describe(name)
    for line in inspect.cleandoc(REGISTRY[name].example).splitlines():
        assert f"    {line}" in page
    assert len(generations(REGISTRY[name])) == len(chips.NAMES)
    assert all(line in page for line in generations(REGISTRY[name]))


@pytest.mark.parametrize("line", examples.QUERIES.values())
def test_what_is_no_instruction_has_an_example_too(line):
    @nki.jit
    def kernel():
        exec(line, {"nisa": nisa})

    kernel.trace()


def test_an_example_is_not_too_simple_to_be_right():
    """Two by hand: what the page of activation and of nc_matmul computes."""

    @nki.jit
    def kernel():
        out = nl.ndarray((64, 512), nl.float32, buffer=nl.shared_hbm)
        weights, x = nl.ones((128, 64), nl.bfloat16), nl.ones((128, 512), nl.bfloat16)
        sums = nl.ndarray((64, 512), nl.float32, buffer=nl.psum)
        nisa.nc_matmul(dst=sums, stationary=weights, moving=x)
        nl.store(out, sums)
        return out

    assert (np.asarray(kernel()) == 128).all()


def test_times_are_told_for_each_chip_that_has_it():
    told = examples.times(REGISTRY["activation"])
    assert [line.split(":")[0] for line in told] == list(chips.NAMES)
    assert all("result after" in line for line in told)
    assert [line.split(":")[0] for line in examples.times(REGISTRY["nc_matmul_mx"])] == ["trn3"]

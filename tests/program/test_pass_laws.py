# SPDX-License-Identifier: Apache-2.0
"""The law of passes, on random kernels: whatever the policy, the same bits, in program order and by the clock.

Policies come from the list of options, so that a new pass or option is covered as soon as it is listed. A failure
shows the kernel with as few statements as it takes. More seeds than a test run takes:

    python tests/program/test_pass_laws.py 1000 [FIRST]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from random_kernels import RandomKernel, arguments, made, shrunk

from trnlab import chips, policy
from trnlab.chips.spec import Chip
from trnlab.nki import checks, install_imports
from trnlab.nki.tracing.traces import memory_of
from trnlab.policy import AS_WRITTEN, RECORDING, SCHEDULED, Policy
from trnlab.program.routine import COL, Routine
from trnlab.sim.functional import Machine
from trnlab.sim.timing import layout
from trnlab.sim.timing.schedule import planned

DIALECTS = ("neuronxcc", "nki")
CHIPS = {name: chips.get(name) for name in ("trn1", "trn2")}
SMALL = 1152  # bytes of SBUF per partition: four tiles
BANK = 2048


def settings(o: policy.Option) -> Iterator[policy.Value]:
    """Values to try an option with, other than its default."""
    if isinstance(o.default, bool):
        yield not o.default
    elif o.choices:
        yield from (c for c in o.choices if c != o.default)
    else:
        yield from {o.least, max(o.least, 3)} - {o.default}


def policies() -> list[Policy]:
    """As nobody compiles, each pass alone, everything, and everything but one choice."""
    alone = [
        AS_WRITTEN.with_options(**{o.name: True})
        for o in policy.options()
        if o.stage == RECORDING and isinstance(o.default, bool)
    ]
    others = [
        SCHEDULED.with_options(**{o.name: v}) for o in policy.options() if o.stage != "room" for v in settings(o)
    ]
    return [AS_WRITTEN, *alone, SCHEDULED, *others]


def small(chip: Chip) -> Chip:
    """The chip with so little SBUF that tiles leave it."""
    return chips.with_figures(
        chip, {"sbuf.bytes_per_partition": SMALL + chip.sbuf.reserved_bytes_per_partition.value}
    )


def as_placed(routine: Routine, chip: Chip, p: Policy) -> Routine:
    """The routine with its tiles of PSUM in the banks that the schedule gives them."""
    plan = planned(routine, chip, p)
    if plan.row_of is None or not len(routine.left_open):
        return routine
    owner = np.insert(routine.operands[:, COL["buffer"]], plan.beside, -1)
    bank = dict(zip(owner.tolist(), (plan.uses & layout.SLOT_MASK).tolist()))
    moved = tuple(
        replace(b, address=bank[b.id] * BANK)
        if b.memory.name == "PSUM" and b.kind == "tile" and b.nbytes <= BANK and bank.get(b.id, 99) < routine.num_psum
        else b
        for b in routine.buffers
    )
    return replace(routine, buffers=moved, _memo={})


def outcomes(kernel: RandomKernel, p: Policy, chip: Chip) -> Iterator[tuple[str, bytes]]:
    """What the kernel computes under a policy: as users call it, and in two orders that the timeline allows."""
    with policy.use(p), checks(accumulation="off"):
        given = arguments(kernel.seed)
        function = kernel.kernel()
        function.chip = chip
        result = function(*given)
        yield "program order", np.asarray(result).tobytes() + given[1].tobytes()
        trace = function.trace(*given)
        timeline = function.timeline(*given)
    routine = as_placed(trace.routine, chip, p)
    moves = np.array([op.lanes > 0 for op in timeline.ops])[timeline.op]
    for name, when in (
        ("order of starts", timeline.start),
        ("transfers as late as they may be", np.where(moves, timeline.done, timeline.start)),
    ):
        memory = memory_of(trace, function.bind(arguments(kernel.seed), {})[1])
        Machine(chip, sbuf_bytes=routine.sbuf_bytes).call(routine, memory, order=np.argsort(when, kind="stable"))
        yield name, memory[3].tobytes() + memory[1].tobytes()


def broken(kernel: RandomKernel, chosen: list[Policy], chip: Chip) -> list[str]:
    """The policies and orders in which the kernel computes other bits than as it is written."""
    expected = next(iter(outcomes(kernel, AS_WRITTEN, chip)))[1]
    return [f"{p}: {name}" for p in chosen for name, got in outcomes(kernel, p, chip) if got != expected]


def check(kernel: RandomKernel, chip: Chip) -> None:
    """Fails with the shortest kernel that breaks the law."""
    found = broken(kernel, policies(), chip)
    if found:
        bad = [p for p in policies() if any(text.startswith(f"{p}: ") for text in found)][:1]

        def fails(smaller: RandomKernel) -> bool:
            try:
                return bool(broken(smaller, bad, chip))
            except Exception:  # without that statement it is no kernel any more
                return False

        pytest.fail(f"{found}\n{shrunk(kernel, fails).source}", pytrace=False)


@pytest.fixture(autouse=True, scope="module")
def imports():
    """Kernels import nki and neuronxcc."""
    install_imports()


def drawn(first: int, count: int) -> list[Any]:
    """Seeds, each with a dialect; with the other one where there is time. Both record the same instructions."""
    pairs = [(seed, dialect) for seed in range(first, first + count) for dialect in DIALECTS]
    long = [DIALECTS[(seed + seed // 4) % 2] != dialect for seed, dialect in pairs]
    return [pytest.param(*pair, marks=pytest.mark.slow) if more else pair for pair, more in zip(pairs, long)]


@pytest.mark.parametrize(("seed", "dialect"), drawn(0, 8))
def test_no_policy_changes_a_bit(seed, dialect):
    check(made(seed, dialect), CHIPS["trn1" if seed % 4 == 3 else "trn2"])


@pytest.mark.parametrize(("seed", "dialect"), drawn(100, 4))
def test_nor_where_tiles_leave_sbuf_for_want_of_room(seed, dialect):
    kernel, chip = made(seed, dialect), small(CHIPS["trn2"])
    function = kernel.kernel()
    function.chip = chip
    with checks(accumulation="off"):
        assert function.trace(*arguments(seed)).routine.spills
    check(kernel, chip)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("seed", range(200, 216))
def test_a_kernel_as_it_is_written_computes_what_its_source_says_on_numpy(dialect, seed):
    kernel, given, theirs = made(seed, dialect, 24), arguments(seed), arguments(seed)
    with policy.use(AS_WRITTEN), checks(accumulation="off"):
        result = np.asarray(kernel.kernel()(*given))
    expected = np.asarray(kernel.on_numpy(*theirs))
    for got, wanted in ((result, expected), (given[1], theirs[1])):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max(), err_msg=kernel.source)


def test_the_law_can_fail(monkeypatch):
    """A pass that deletes an instruction is found, and the kernel shrunk to what shows it."""
    from trnlab.program import passes

    def wrong(draft):
        for i in range(len(draft)):
            if draft.attributes(i).get("op0") == "maximum" or draft.attributes(i).get("op0") == "max":
                draft.deleted[i] = True

    monkeypatch.setitem(passes.PASSES, "versions", passes.Pass(wrong))
    chosen = [AS_WRITTEN.with_options(versions=True)]
    bad = made(300, "nki", 24)
    assert broken(bad, chosen, CHIPS["trn2"])
    least = shrunk(bad, lambda k: bool(broken(k, chosen, CHIPS["trn2"])))
    assert len(least.statements) == 1
    assert "maximum" in least.source


if __name__ == "__main__":
    install_imports()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    for number in range(first, first + int(sys.argv[1])):
        for language in DIALECTS:
            room = small(CHIPS["trn2"]) if number % 3 == 2 else CHIPS["trn1" if number % 3 else "trn2"]
            try:
                check(made(number, language, 10 + number % 20), room)
            except pytest.fail.Exception as failure:
                print(f"seed {number}, {language}, {room.name}: {failure}")
            except Exception as error:
                print(f"seed {number}, {language}, {room.name}: {type(error).__name__} {str(error)[:300]}")

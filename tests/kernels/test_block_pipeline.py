# SPDX-License-Identifier: Apache-2.0
"""The blocking of a product is chosen by going through its pieces. That is held against what the choice is about:
the product recorded in each blocking, and timed by the simulator, as the second of two that follow each other."""

import pytest

from tests.kernels.test_matmul import product_routine
from trnlab.chips import catalog
from trnlab.kernels import matmul
from trnlab.kernels.blocking.choose import _fastest, _worth_following, choose
from trnlab.kernels.blocking.costs import block_seconds
from trnlab.kernels.blocking.problem import MatmulProblem
from trnlab.program.routine import Call, Program, ProgramTensor
from trnlab.sim.timing import outline_program

# M, N, K, and which operands have the contraction in their rows: layers of transformers, forward and backward
PROBLEMS = [
    (1024, 1024, 2048, (True, True)),
    (2048, 1024, 1024, (False, False)),
    (2048, 1024, 1024, (False, True)),
    (1024, 768, 768, (False, True)),
]
CHIPS = ["trn1", "trn2"]
SINK = 8192  # bytes per partition, at most, of tiles on their way to memory


def half(chip):
    return chip.sbuf.usable_bytes_per_partition // 2 // 64 * 64


def picoseconds(routine, chip):
    """Of the second and third of three products on tensors of their own, in turns in both halves of SBUF."""

    def ends(count):
        tensors, calls = [], []
        for i in range(count):
            args = []
            for buffer in (routine.buffers[p] for p in routine.params):
                args.append(len(tensors))
                tensors.append(ProgramTensor(len(tensors), "t", buffer.shape, buffer.dtype, buffer.nbytes, "input"))
            calls.append(Call(0, tuple(args), half(chip) * (i % 2)))
        ids = tuple(range(len(tensors)))
        return outline_program(
            Program("products", chip.name, (routine,), tuple(tensors), tuple(calls), ids, ()), chip
        ).total

    return (ends(3) - ends(1)) / 2


@pytest.fixture(scope="module", params=[(name, *problem) for name in CHIPS for problem in PROBLEMS], ids=str)
def times(request):
    """Of the blocking that is chosen, then of every fourth that is gone through, the best estimate first."""
    name, m, n, k, layout = request.param
    chip, real = catalog.get(name), matmul.choose
    problem, budget = MatmulProblem(m, n, k, "bfloat16", *layout), half(chip) - SINK
    found = []
    try:
        for blocking in (choose(problem, budget, chip), *_worth_following(problem, budget, chip)[::4]):
            matmul.choose = lambda *_, blocking=blocking: blocking
            routine = product_routine(m, n, k, layout, "bfloat16", "bfloat16", chip, half(chip))
            found.append(picoseconds(routine, chip))
    finally:
        matmul.choose = real
    return found


def test_what_is_chosen_is_hardly_slower_than_the_best(times):
    """The bytes that it moves count, too, so the fastest of products alone is not always chosen."""
    assert times[0] <= 1.12 * min(times)


def test_what_is_chosen_is_as_fast_as_the_best_estimate(times):
    """Estimates alone choose what takes up to 46 % longer than the best, on these chips."""
    assert times[0] <= 1.03 * times[1]


@pytest.mark.parametrize("shape", [(1000, 700, 3000), (128, 4096, 512), (8192, 768, 768), (60, 50304, 768)], ids=str)
@pytest.mark.parametrize("layout", [(True, True), (False, True)], ids=str)
def test_giving_up_early_finds_the_same(shape, layout):
    """Blockings that are sure to lose are not gone through to their end. That changes neither what is chosen nor what
    it costs, and nobody is given up who is not worse."""
    chip = catalog.get("trn1")
    problem, budget = MatmulProblem(*shape, "bfloat16", *layout), half(chip) - SINK
    found = _worth_following(problem, budget, chip)
    seconds = [block_seconds(problem, blocking, chip) for blocking in found]
    least = min(seconds)
    assert _fastest(problem, found, chip) == found[seconds.index(least)]
    for blocking, whole in zip(found, seconds):
        limited = block_seconds(problem, blocking, chip, least)
        assert limited == whole or (limited == float("inf") and whole > least)


def test_long_products_are_extrapolated():
    """What is not gone through counts as what is: twice the rows take twice as long, though a part is followed."""
    chip = catalog.get("trn1")
    problems = [MatmulProblem(m, 4096, 4096, "bfloat16", True, True) for m in (1 << 15, 1 << 16)]
    found = [block_seconds(p, choose(p, half(chip), chip), chip) for p in problems]
    assert found[1] == pytest.approx(2 * found[0], rel=0.02)

# SPDX-License-Identifier: Apache-2.0
"""Programs with collectives: bits of several ranks against the interpreter, order, buckets, memory and time."""

from functools import reduce

import numpy as np
import pytest
from compiled import FP32

from trnlab import chips
from trnlab.compiler import compile
from trnlab.errors import RunError, UnsupportedOpError, UsageError
from trnlab.fabric.world import World, together
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.interpret import interpret
from trnlab.numerics.dtypes import dtype, float32
from trnlab.program.communication import collective_calls, collective_of
from trnlab.program.parse import parse_program
from trnlab.program.text import program_text
from trnlab.sim.functional import run_program
from trnlab.sim.timing import time_program

WORLD, CHIP = World("trn1.32xlarge", 4), chips.get("trn1")
ALL, PAIRS = ((0, 1, 2, 3),), ((0, 1), (2, 3))
OPTIONS = {"precision": "fp32", "cluster": WORLD.cluster_name, "ranks": WORLD.size}


def graph_of(make, *shapes, format="float32"):
    """The graph of make(b, *inputs)."""
    b = GraphBuilder("together")
    results = make(b, *(b.input(f"x{i}", shape, dtype(format)) for i, shape in enumerate(shapes)))
    for value in results if isinstance(results, (tuple, list)) else (results,):
        b.output(value)
    return b.build()


def on_ranks(program, graph, inputs):
    """The outputs on each rank; inputs: per rank, an array per input."""

    def run(ranks):
        outputs = [np.zeros(v.shape, v.dtype.numpy) for v in graph.outputs]
        bound = dict(zip(program.outputs, outputs)) | dict(zip(program.inputs, inputs[ranks.rank]))
        run_program(program, bound, CHIP, ranks=ranks)
        return outputs

    return together(WORLD, run)


def numbers(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs] for _ in range(WORLD.size)]


FORMS = {
    "all_reduce": lambda b, x: b.all_reduce([x], PAIRS)[0],
    "maximum": lambda b, x: b.all_reduce([x], ALL, "maximum")[0],
    "gather rows": lambda b, x: b.all_gather([x], ALL)[0],
    "gather columns": lambda b, x: b.all_gather([x], PAIRS, 1)[0],
    "scatter rows": lambda b, x: b.reduce_scatter([x], ALL)[0],
    "scatter columns": lambda b, x: b.reduce_scatter([x], ALL, 1)[0],
    "exchange": lambda b, x: b.all_to_all(x, ALL),
    "exchange rows for columns": lambda b, x: b.all_to_all(x, ALL, 0, 1),
    "exchange columns for rows": lambda b, x: b.all_to_all(x, PAIRS, 1, 0),
    "permute": lambda b, x: b.collective_permute(x, [(0, 1), (1, 2), (2, 0)]),
    "broadcast": lambda b, x: b.collective_broadcast(x, ((1, 0), (3, 2))),
    "several": lambda b, x: b.all_reduce([x, b.transpose(x, (1, 0))], ALL),
    "of a view": lambda b, x: b.all_reduce([b.slice_dim(x, 0, 2, 6)], ALL)[0],
    "of a constant": lambda b, x: b.add(b.all_reduce([b.constant(2.0, float32, (8, 12))], ALL)[0], x),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_program_moves_and_adds_what_the_graph_says_bit_for_bit(form):
    graph = graph_of(FORMS[form], (8, 12))
    program = compile(graph, CHIP, {**OPTIONS, "bucket_mib": 0})
    inputs = numbers(graph)
    expected = together(WORLD, lambda r: interpret(graph, inputs[r.rank], ranks=r))
    for found, wanted in zip(on_ranks(program, graph, inputs), expected):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("format", ["bfloat16", "int32", "float16"])
def test_other_formats(format):
    graph = graph_of(lambda b, x: b.all_reduce([x], ALL)[0], (4, 6), format=format)
    inputs = [[(8 * x).astype(dtype(format).numpy) for x in given] for given in numbers(graph)]
    expected = together(WORLD, lambda r: interpret(graph, inputs[r.rank], ranks=r)[0])
    for found, wanted in zip(on_ranks(compile(graph, CHIP, OPTIONS), graph, inputs), expected):
        np.testing.assert_array_equal(found[0], wanted)


def layers(b, x, *weights):
    """Products whose sums over ranks are needed at once, and reductions of the weights that nobody waits for."""
    others = []
    for w in weights:
        x = b.tanh(b.all_reduce([b.matmul(x, w)], ALL)[0])
        others.append(b.all_reduce([b.multiply(w, 2.0)], ALL)[0])
    return [x, *others]


def test_collectives_between_products():
    graph = graph_of(layers, (16, 32), (32, 32), (32, 32), (32, 32))
    program = compile(graph, CHIP, OPTIONS)
    inputs = numbers(graph)
    expected = together(WORLD, lambda r: interpret(graph, inputs[r.rank], ranks=r))
    for found, wanted in zip(on_ranks(program, graph, inputs), expected):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=100 * FP32)
    assert program_text(parse_program(program_text(program))) == program_text(program)


def kinds(program):
    """Kind and number of tensors of each collective, in order."""
    routines = [program.routines[program.calls[i].routine] for i in collective_calls(program)]
    return [(collective_of(r).kind, len(r)) for r in routines]


def test_reductions_that_do_not_wait_for_each_other_are_one():
    def make(b, x, y, z):
        return [b.all_reduce([v], ALL)[0] for v in (x, y, z)]

    graph = graph_of(make, (1 << 10,), (1 << 10,), (1 << 18,))
    assert kinds(compile(graph, CHIP, OPTIONS)) == [("all_reduce", 3)]
    assert kinds(compile(graph, CHIP, {**OPTIONS, "bucket_mib": 1})) == [("all_reduce", 2), ("all_reduce", 1)]
    assert kinds(compile(graph, CHIP, {**OPTIONS, "bucket_mib": 0})) == [("all_reduce", 1)] * 3


def test_buckets_do_not_wait_for_each_other_in_a_circle():
    """b1 waits for a1 and a2 for b2: with both a in one bucket, the b must be apart."""

    def make(b, x, y):
        b2 = b.all_reduce([b.add(x, 1.0)], PAIRS)[0]
        a2 = b.all_reduce([b.tanh(b2)], ALL)[0]
        a1 = b.all_reduce([y], ALL)[0]
        b1 = b.all_reduce([b.tanh(a1)], PAIRS)[0]
        return [a2, b1]

    graph = graph_of(make, (8,), (8,))
    inputs = numbers(graph)
    program = compile(graph, CHIP, OPTIONS)
    assert sorted(kinds(program)) == [("all_reduce", 1), ("all_reduce", 1), ("all_reduce", 2)]
    expected = together(WORLD, lambda r: interpret(graph, inputs[r.rank], ranks=r))
    for found, wanted in zip(on_ranks(program, graph, inputs), expected):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=10 * FP32)


def gathered_layers(b, x, *parts):
    """As FSDP: each layer gathers its weight, and the gradients are scattered."""
    found = []
    for part in parts:
        (w,) = b.all_gather([part], ALL)
        x = b.tanh(b.matmul(x, w))
        found.append(b.reduce_scatter([b.multiply(b.matmul(b.transpose(x, (1, 0)), x), 2.0)], ALL)[0])
    return [x, *found]


def order_of(program):
    """The kinds of the calls, in order; products as one letter."""
    names = [collective_of(routine) for _, routine in program]
    return ["all_gather" if n and n.kind == "all_gather" else "scatter" if n else "." for n in names]


def test_gathers_start_earlier_and_scatters_later_as_the_policy_says():
    graph = graph_of(gathered_layers, (64, 64), *[(16, 64)] * 4)
    plain, shifted = (compile(graph, CHIP, {**OPTIONS, "overlap": p}) for p in ("data", "shift:1"))
    where = [[i for i, n in enumerate(order_of(p)) if n == "all_gather"] for p in (plain, shifted)]
    assert all(a >= b for a, b in zip(*where))
    assert where[0] != where[1]
    inputs = numbers(graph)
    for one, other in zip(on_ranks(plain, graph, inputs), on_ranks(shifted, graph, inputs)):
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)


def test_the_next_gather_is_on_its_way_while_a_layer_computes():
    """By default: one gather ahead and no more, so that two layers' weights are in memory."""
    graph = graph_of(gathered_layers, (64, 64), *[(16, 64)] * 4)
    order = order_of(compile(graph, CHIP, OPTIONS))
    assert order[:2] == ["all_gather", "all_gather"]
    ahead = [order[: i + 1].count("all_gather") - order[: i + 1].count("scatter") for i in range(len(order))]
    assert max(ahead) == 2
    plain, ahead = (time_program(compile(graph, CHIP, {**OPTIONS, "overlap": p}), CHIP) for p in ("data", "prefetch"))
    assert ahead.total < plain.total


def column_parallel(b, x, dy, w):
    """A layer's gradients as autograd orders them: of the weight, then of what came in, which is reduced."""
    weight = b.dot_general(dy, x, ((0,), (0,)))
    inner = b.dot_general(dy, w, ((1,), (0,)))
    (reduced,) = b.reduce_scatter([inner], ALL)
    return weight, b.tanh(reduced)


def test_the_gradient_of_a_weight_hides_the_reduction_beside_it():
    """As in Megatron-LM: it waits until the reduction of the input's gradient is on its way. Same bits, less time."""
    graph = graph_of(column_parallel, (512, 512), (512, 512), (512, 512))
    plain, filled = (compile(graph, CHIP, {**OPTIONS, "overlap": p}) for p in ("data", "prefetch"))
    assert order_of(plain) == [".", ".", "scatter", "."]
    assert order_of(filled) == [".", "scatter", ".", "."]
    assert time_program(filled, CHIP).total < time_program(plain, CHIP).total
    inputs = numbers(graph)
    for one, other in zip(on_ranks(plain, graph, inputs), on_ranks(filled, graph, inputs)):
        for a, b in zip(one, other):
            np.testing.assert_array_equal(a, b)


def test_a_product_that_hides_the_collective_before_stays():
    """Nobody has asked for the first sum yet: the product between is what it overlaps with."""

    def make(b, x, y):
        (first,) = b.all_reduce([b.dot_general(x, y, ((1,), (0,)))], ALL)
        between = b.dot_general(y, x, ((1,), (0,)))
        (second,) = b.all_gather([b.tanh(y)], ALL)
        return b.tanh(first), between, second

    order = order_of(compile(graph_of(make, (256, 256), (256, 256)), CHIP, OPTIONS))
    first = order.index("scatter")
    assert order[first + 1] == "."


@pytest.mark.parametrize("policy", ["shift:1", "shift:2", "shift:1,3"])
def test_a_gather_of_what_is_scattered_stays_behind_it(policy):
    def make(b, x):
        for _ in range(3):
            (part,) = b.reduce_scatter([b.tanh(x)], ALL)
            (x,) = b.all_gather([part], ALL)
        return x

    order = order_of(compile(graph_of(make, (64, 64)), CHIP, {**OPTIONS, "overlap": policy}))
    assert [n for n in order if n != "."] == ["scatter", "all_gather"] * 3


def test_what_a_collective_reads_is_kept_while_two_more_start_and_what_it_writes_until_it_is_read():
    graph = graph_of(gathered_layers, (64, 64), *[(16, 64)] * 4)
    program = compile(graph, CHIP, {**OPTIONS, "overlap": "shift:2"})
    extent = {t.id: (t.address, t.address + t.nbytes) for t in program.tensors if t.kind == "temp"}
    starts = [*collective_calls(program), *[len(program.calls)] * 2]
    for start, later in zip(starts, starts[2:]):
        *given, result = program.calls[start].args
        read = next((i for i in range(start + 1, len(program.calls)) if result in program.calls[i].args), later)
        for kept, until in (*((g, min(read, later)) for g in given), (result, read)):
            for call in program.calls[start + 1 : until] if kept in extent else ():
                for other in (id for id in call.args if id in extent and id != kept):
                    assert extent[other][0] >= extent[kept][1] or extent[other][1] <= extent[kept][0]


def test_gradients_on_their_way_do_not_pile_up():
    """Eight layers' gradients are scattered, and read at the end alone: what they are scattered from is not kept."""

    def make(b, x):
        found = []
        for _ in range(8):
            x = b.tanh(b.matmul(x, x))
            found.append(b.reduce_scatter([b.multiply(x, 2.0)], ALL)[0])
        norm = reduce(b.add, [b.reduce(f, [0, 1], "maximum") for f in found])
        return [b.multiply(f, norm) for f in found]

    graph = graph_of(make, (256, 256))
    one = 256 * 256 * 4
    assert compile(graph, CHIP, OPTIONS).hbm_bytes < 8 * one / 4 + 6 * one


def test_time_of_a_collective_is_the_fabrics():
    graph = graph_of(lambda b, x: b.all_reduce([x], ALL)[0], (1 << 20,))
    program = compile(graph, CHIP, OPTIONS)
    timeline = time_program(program, CHIP)
    asked = collective_of(program.routines[program.calls[collective_calls(program)[0]].routine])
    seconds = WORLD.cost(asked, 4 << 20).seconds
    (row,) = np.flatnonzero(timeline.engine == 5)
    assert int(timeline.done[row] - timeline.start[row]) == round(seconds * 1e12)


def test_compute_goes_on_beside_a_collective_unless_the_policy_says_none():
    def make(b, x, y, w):
        (sum_,) = b.all_reduce([x], ALL)
        for _ in range(6):
            y = b.tanh(b.matmul(y, w))
        return [b.add(sum_, 1.0), y]

    graph = graph_of(make, (1 << 18,), (256, 256), (256, 256))
    beside, apart = (time_program(compile(graph, CHIP, {**OPTIONS, "overlap": p}), CHIP) for p in ("data", "none"))
    taken = int((apart.done - apart.start)[apart.engine == 5].sum())
    computing = min(beside.total, apart.total) - taken
    assert apart.total > beside.total + min(taken, computing) // 4
    (row,) = np.flatnonzero(apart.engine == 5)
    others = apart.start[row + 1 :]
    assert (others >= apart.done[row]).all()


def test_several_tensors_are_there_together():
    graph = graph_of(lambda b, x, y: [b.tanh(v) for v in b.all_reduce([x, y], ALL)], (1 << 12,), (1 << 18,))
    timeline = time_program(compile(graph, CHIP, OPTIONS), CHIP)
    rows = np.flatnonzero(timeline.engine == 5)
    assert len(rows) == 2
    assert len(set(timeline.done[rows].tolist())) == 1
    assert (timeline.start[rows[-1] + 1 :] >= timeline.done[rows[0]]).all()


@pytest.mark.parametrize(
    ("make", "options", "error", "code"),
    [
        (lambda b, x: b.all_reduce([x], ALL)[0], {"precision": "fp32"}, UsageError, "TRN260"),
        (lambda b, x: b.all_reduce([x], ALL, "multiply")[0], OPTIONS, UnsupportedOpError, "TRN261"),
        (lambda b, x: b.add(b.convert(b.partition_id(), float32), x), OPTIONS, UnsupportedOpError, "TRN262"),
        (lambda b, x: b.all_reduce([x], ALL)[0], {**OPTIONS, "overlap": "early"}, UsageError, "TRN263"),
    ],
)
def test_refusals(make, options, error, code):
    with pytest.raises(error, match=code):
        compile(graph_of(make, (8,)), CHIP, options)


def test_a_program_alone_says_who_is_missing():
    graph = graph_of(lambda b, x: b.all_reduce([x], ALL)[0], (8,))
    program = compile(graph, CHIP, OPTIONS)
    arrays = [np.zeros(8, np.float32) for _ in range(2)]
    with pytest.raises(RunError, match="TRN264"):
        run_program(program, {program.inputs[0]: arrays[0], program.outputs[0]: arrays[1]}, CHIP)


def test_one_rank_needs_nobody():
    """A group of one is no collective: the program is that of one core."""
    graph = graph_of(lambda b, x: b.all_reduce([b.tanh(x)], ((0,),))[0], (8, 8))
    program = compile(graph, CHIP, {"precision": "fp32"})
    assert program.ranks == 1
    assert not collective_calls(program)

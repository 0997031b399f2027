# SPDX-License-Identifier: Apache-2.0
"""Query heads that share keys may be loaded a few at a time: the numbers are those of all at once."""

import numpy as np
import pytest
import test_attention
import test_attention_backward
from attention_problem import Problem, builder, tensors

from trnlab.errors import CapacityError
from trnlab.isa import REGISTRY
from trnlab.kernels import attention_backward, attention_memory
from trnlab.kernels.attention_tiles import HeadGroup, HeadGroups, HeadTiles, Task, plan_groups
from trnlab.kernels.view import full

PROBLEMS = [
    Problem(batch=2, heads=8, kv_heads=2, queries=260, depth=64, causal=True),
    Problem(batch=1, heads=12, kv_heads=3, queries=130, keys=300, depth=128, kind="bfloat16"),
    Problem(batch=3, heads=4, kv_heads=1, queries=40, depth=32, causal=True, chip="trn1"),
    Problem(batch=1, heads=8, kv_heads=1, queries=700, depth=128, causal=True, kind="bfloat16", chip="trn1"),
]
BUFFERS = [(2, 2, 2), (2, 2, 1), (2, 1, 1), (1, 1, 1)]


def few_at_a_time(heads, of_queries, of_keys, of_results=2):
    """Stands in for `plan_groups`: so many query heads of one key head."""

    def plan(b, task, room, tiles, together=None):
        groups = [
            HeadGroup(batch, head // task.shared, 1, head, heads)
            for batch in range(task.batch)
            for head in range(0, task.heads, heads)
        ]
        several = tiles.results == 0 and of_keys > 1  # results of keys are not apart from them
        buffers = of_queries, of_keys, of_keys if several else min(of_keys, of_results)
        return HeadGroups(groups, *(min(n, len(groups)) for n in buffers))

    return plan


def parts(p):
    """Divisors of the number of query heads that share keys."""
    shared = p.heads // p.kv_heads
    return [n for n in range(1, shared + 1) if shared % n == 0]


CASES = [(p, n, *buffers) for p in PROBLEMS for n in parts(p) for buffers in BUFFERS]


@pytest.mark.parametrize(("p", "heads", "of_queries", "of_keys", "of_results"), CASES, ids=str)
def test_forward_has_the_same_bits(monkeypatch, p, heads, of_queries, of_keys, of_results):
    (q, k, v, _), _ = tensors(p)
    expected = test_attention.forward(p, q, k, v)
    monkeypatch.setattr(attention_memory, "plan_groups", few_at_a_time(heads, of_queries, of_keys, of_results))
    for got, same in zip(test_attention.forward(p, q, k, v), expected):
        np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize(("p", "heads", "of_queries", "of_keys", "of_results"), CASES, ids=str)
def test_backward_has_the_same_bits(monkeypatch, p, heads, of_queries, of_keys, of_results):
    inputs, _ = test_attention_backward.case(p)
    expected = test_attention_backward.backward(p, *inputs)
    monkeypatch.setattr(attention_backward, "plan_groups", few_at_a_time(heads, of_queries, of_keys, of_results))
    for got, same in zip(test_attention_backward.backward(p, *inputs), expected):
        np.testing.assert_array_equal(got, same)


def loads(routine):
    """Bytes that come from HBM."""
    dma = REGISTRY["dma_copy"].opcode
    works = [routine.works[work] for work, opcode in zip(routine.work, routine.opcode) if opcode == dma]
    return sum(work.nbytes for work in works)


def test_keys_are_loaded_once_for_all_that_share_them(monkeypatch):
    p = PROBLEMS[3]
    whole = loads(test_attention.forward_routine(p))
    monkeypatch.setattr(attention_memory, "plan_groups", few_at_a_time(1, 2, 1))
    assert loads(test_attention.forward_routine(p)) == whole


@pytest.mark.parametrize(("shared", "length"), [(8, 4096), (4, 4096), (8, 2048), (1, 4096)])
def test_groups_fit_the_room_that_there_is(shared, length):
    """Every head is in one group, and what has tiles at a time is no more than the room."""
    b = builder(Problem(kind="bfloat16"))
    q, k = ((1, heads, length, 128) for heads in (2 * shared, 2))
    task = Task(*(full(b.param(n, s, "bfloat16")) for n, s in (("q", q), ("k", k), ("v", k))), None, True, 1.0)
    tile = length // 128 * 256
    for room in (n * tile for n in (200, 60, 24, 16, 12, 8, 6, 4)):
        groups = plan_groups(b, task, room, HeadTiles(2 * 128, 128, results=128))
        assert [h for g in groups.all for h in range(g.head, g.head + g.heads)] == list(range(2 * shared))
        first = groups.all[0]
        of_keys = groups.of_keys + groups.of_results
        assert tile * (2 * first.heads * groups.of_queries + first.kvs * of_keys) <= room
        assert groups.of_queries == min(2, len(groups.all)) or room < (7 if shared == 1 else 6) * tile


@pytest.mark.parametrize(("heads", "length"), [(12, 98), (6, 49), (2, 2048)])
def test_room_that_is_too_little_is_refused_where_there_is_more(heads, length):
    """Short sequences come several heads at a time, long ones with the next on its way; without more room they come
    as they can."""
    b = builder(Problem(kind="bfloat16"))
    shape = (4, heads, length, 32)
    task = Task(*(full(b.param(n, shape, "bfloat16")) for n in "qkv"), None, False, 1.0)
    rooms = [(1 << 10) * n for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    found = [plan_groups(b, task, room, HeadTiles(64, 64)) for room in rooms]
    b.may_have_more = True
    fine = []
    for room, before in zip(rooms, found):
        try:
            fine.append(plan_groups(b, task, room, HeadTiles(64, 64)) == before)
        except CapacityError:
            assert not fine, "more room is no reason to refuse"
            together = min(heads, max(1, 4 // -(-length // 128)))
            assert before.all[0].heads < together or before.of_queries < 2
    assert all(fine)
    assert 0 < len(fine) < len(rooms)

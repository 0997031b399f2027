# SPDX-License-Identifier: Apache-2.0
"""What GPUs' costs read in graphs of layers, those of an architecture that nobody told them of included."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from trnlab.fleet.gpus import catalogue, readings
from trnlab.fleet.gpus.costs import HALF, TrainingWork
from trnlab.fleet.gpus.readings import MASK, TensorExchange
from trnlab.fleet.gpus.roofline import step
from trnlab.fleet.layers.shares import DecoderShare, ShardSpec
from trnlab.fleet.models.configurations import model
from trnlab.fleet.models.transformer import Block
from trnlab.fleet.search.layout import Layout

LLAMA = model("llama3-8b")
BLOCK = LLAMA.stacks[0][1]
H, INNER, HEADS, KV, D = 4096, 14336, 32, 8, 128
B, S, T = 2, 512, 4
ROWS = B * S


@dataclass(frozen=True)
class Parallel(Block):
    """Attention and network beside each other, behind one norm (GPT-J, PaLM)."""

    def forward(self, layers, name, x):
        y = layers.norm(f"{name}_1", x, self.norm)
        beside = layers.add(x, layers.attention(name, self.attention, y))
        return layers.add(beside, layers.network(name, self.network, y))


PARALLEL = Parallel(BLOCK.hidden, BLOCK.attention, BLOCK.network, BLOCK.norm)


def read(block, spread=T, memory=0):
    return readings.of_block(block, DecoderShare(B, S, T, memory=memory), spread)


def test_a_dense_layer_is_four_products_and_five_streams():
    """Queries, keys and values are made at once, and so are both halves of a gated network."""
    found = read(BLOCK)
    columns = HEADS * D // T
    assert found.products == (
        (ROWS, H, columns + 2 * KV * D // T, 1),
        (ROWS, columns, H, 1),
        (ROWS, H, 2 * INNER // T, 1),
        (ROWS, INNER // T, H, 1),
    )
    norm, added = 2 * HALF * ROWS * H / T, (3 * HALF + MASK) * ROWS * H / T
    assert found.streams == (norm, added, norm, 3 * HALF * ROWS * INNER / T, added)
    assert found.exchanges == (TensorExchange(HALF * ROWS * H, HALF * ROWS * H),) * 2
    assert found.sent == ()


def test_a_block_of_an_architecture_of_its_own_is_read():
    """One norm, one gather, one product of all that reads it; sums meet what goes past at once."""
    found = read(PARALLEL)
    opening = (HEADS + 2 * KV) * D // T + 2 * INNER // T
    assert found.products == ((ROWS, H, opening, 1), (ROWS, HEADS * D // T, H, 1), (ROWS, INNER // T, H, 1))
    inside, between = HALF * ROWS * INNER / T, ROWS * H / T
    assert sorted(found.streams) == sorted([2 * HALF * between, 3 * inside, (4 * HALF + MASK) * between])
    whole = HALF * ROWS * H
    assert found.exchanges == (TensorExchange(whole, whole), TensorExchange(0.0, whole))
    heads = HALF * ROWS * (2 * HEADS + 2 * KV) * D / T
    assert found.kept == pytest.approx(2 * HALF * between + heads + 3 * inside + MASK * between)


def test_a_step_of_such_blocks_is_faster_and_keeps_less():
    def of(block):
        known = replace(LLAMA, stacks=((32, block),))
        return step(TrainingWork(known, Layout(T, 1, 2, 1), catalogue.instance("p5.48xlarge"), 64, 4096))

    usual, beside = of(BLOCK), of(PARALLEL)
    assert sum(beside.seconds.values()) == pytest.approx(beside.total)
    assert 0.9 * usual.total < beside.total < usual.total
    assert beside.seconds["tensor parallel"] < usual.seconds["tensor parallel"]
    assert beside.bytes["activations"] < usual.bytes["activations"]


def test_without_sequence_parallelism_all_ranks_have_all_rows_between_products():
    divided, whole = read(BLOCK), read(BLOCK, spread=1)
    assert whole.products == divided.products
    assert [a / b for a, b in zip(whole.streams, divided.streams)] == [T, T, T, 1, T]
    assert (whole.entering, divided.entering) == (ROWS * H, ROWS * H / T)


def test_sequences_that_ranks_do_not_divide_are_read_whole():
    found = readings.of_block(BLOCK, ShardSpec(1, 197, 8), 8)
    assert {rows for rows, *_ in found.products} == {197}
    assert found.streams[0] == 2 * HALF * 197 * H / 8


def test_compressed_keys_are_gathered_in_the_place_of_rows():
    """1,536 columns of queries, 512 of keys and values, 64 of turned keys, and not 7,168 of the hidden size."""
    block = model("deepseek-v3").stacks[0][1]
    first, _ = read(block).exchanges
    assert first.gathered == HALF * ROWS * (1536 + 512 + 64)
    assert first.summed == HALF * ROWS * 7168


def test_a_decoder_gathers_what_its_encoder_made_and_keeps_nothing_of_it():
    block = model("t5-base").stacks[1][1]
    one, other = read(block, memory=S), read(block, memory=2 * S)
    assert other.exchanges[1].gathered - one.exchanges[1].gathered == HALF * ROWS * block.hidden
    a = block.cross
    assert other.kept - one.kept == HALF * ROWS * a.heads * (a.size + a.value_size) / T


def test_norms_of_queries_and_keys_stream_and_are_kept():
    """Qwen3's: what enters them is kept beside what leaves them."""
    block = model("qwen3-8b").stacks[0][1]
    plain = replace(block, attention=replace(block.attention, norms=False))
    heads = HALF * ROWS * (32 + 8) * 128 / T
    assert sum(read(block).streams) - sum(read(plain).streams) == 2 * heads
    assert read(block).kept - read(plain).kept == heads


def test_rows_of_experts_are_those_of_an_even_router():
    block = model("mixtral-8x7b").stacks[0][1]
    tight = replace(block, network=replace(block.network, capacity=4.0))
    for known in (block, tight):
        found = readings.of_block(known, ShardSpec(B, S, T, expert=8), T)
        assert found.products[2] == (ROWS / T, 4096, 8, 1)  # the router
        assert found.products[3] == (2 * ROWS, 4096, 2 * 14336 // T, 1)
        assert found.sent == (HALF * 2 * ROWS * 4096 / T,) * 2


def test_a_head_is_what_the_model_says():
    """BERT's has a matrix, an activation and a norm of its own."""
    bert = model("bert-base")
    found = readings.of_head(bert, ShardSpec(1, 512), 1)
    assert found.products == ((512, 768, 768, 1), (512, 768, 30522, 1))
    assert found.leaving == 512 * 30522
    plain = readings.of_head(replace(bert, transform=False), ShardSpec(1, 512), 1)
    assert plain.products == found.products[1:]


def test_what_is_kept_is_divided_by_the_ranks_with_sequence_parallelism_alone():
    assert read(BLOCK).kept * T == pytest.approx(readings.of_block(BLOCK, ShardSpec(B, S), 1).kept)
    assert read(BLOCK, spread=1).kept > read(BLOCK).kept

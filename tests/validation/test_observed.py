# SPDX-License-Identifier: Apache-2.0
"""What is read off a profile, and off a prediction of the same kernel, is counted in the same terms."""

from __future__ import annotations

import pytest

from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.program import Builder
from trnlab.sim.timing import time_routine
from trnlab.validation.sources.observed import ProfileQuantities, compare, of_dump, of_timeline, window_phase

TRN2 = chips.get("trn2")
US = 1_000_000


def instruction(start, duration, engine, opcode, operands="", **more):
    return {
        "timestamp": start,
        "duration": duration,
        "subgroup": engine,
        "opcode": opcode,
        "operands": operands,
        **more,
    }


def matmul(start, name, kind="REGULAR"):
    operands = "fp32_mode=LOW_HIGH src=fp32@0x4000[1,0,0][128,1,1] dst=0x2002000[1,0,0][128,1,1] 128*128"
    return instruction(start, 400, "Tensor", "MATMUL", operands, bir_instruction_name=name, instruction_type=kind)


def packet(start, size, engine, index, queue="1", kind="hardware_dynamic"):
    return {
        "timestamp": start,
        "duration": 100,
        "transfer_size": size,
        "dma_queue": queue,
        "dma_engine": engine,
        "queue_type": kind,
        "packet_idx": index,
    }


def dump():
    """Two matmuls of two passes (the first in a half-rate window), a transpose, a copy out of PSUM and one in SBUF, a
    small and a large reduction, two triggers, and their transfers over two DMA engines."""
    psum, sbuf = "src=fp32@0x2003000[1,1,1,1][512,1,1,1] dst=x", "src=fp32@0x6850[1,1,1,1][512,1,1,1] dst=x"
    packets = []
    for engine, late in (("64", 0), ("65", 50)):
        for number in range(2):
            first = 1000 + late + number * 1000
            packets += [packet(first, 512, engine, 2 * number), packet(first + 100, 4, engine, 2 * number + 1)]
    return {
        "summary": [{"total_time": 50e-6}],
        "ham": [{"timestamp": 8000, "duration": 4000, "k": 8, "n": 8}],
        "instruction": [
            instruction(10, 5000, "Vector", "EVENT_SEMAPHORE"),
            instruction(900, 600, "Sync", "DMA_DIRECT2D"),
            instruction(1600, 40, "GpSimd", "DMA_DIRECT2D"),
            matmul(3000, "I-1"),
            matmul(3200, "I-1"),
            matmul(9000, "I-2"),
            matmul(9200, "I-2"),
            matmul(9500, "I-3", "TRANSPOSE"),
            instruction(10000, 600, "Vector", "COPY", psum),
            instruction(10500, 600, "Vector", "CAST", sbuf),
            instruction(12000, 100, "Vector", "TENSOR_REDUCE", "src=fp32@0x6820[1,1,1,1][1,4,1,1] dst=x"),
            instruction(13000, 600, "Vector", "TENSOR_REDUCE", sbuf),
        ],
        "dma": [*packets, packet(100, 16384, "70", 0, "14", "instruction")],
    }


def test_a_profile_is_read():
    found = of_dump(dump())
    assert found.times["total"] == pytest.approx(50 * US)
    assert found.times["active tensor"] == 600_000 + 900_000, "overlapping instructions count once"
    assert found.times["active vector"] == 1_100_000 + 700_000, "waiting is no work"
    assert (found.times["active sync"], found.times["active gpsimd"]) == (600_000, 40_000)
    assert found.times["transfer time"] == 2 * 150_000, "from the first byte of one engine to the last of the other"
    assert found.times["half-rate matmuls[128]:float32"] == 600_000
    wanted = {
        "matmuls": 2,
        "transposes": 1,
        "PE at half rate": 1,
        "PSUM copies": 1,
        "copies in SBUF": 1,
        "reductions": 1,
        "small reductions": 1,
        "triggers sync": 1,
        "triggers gpsimd": 1,
        "triggers": 2,
        "transfers": 2,
        "bytes": 2048,
    }
    assert {name: count for name, count in found.counts.items() if count} == wanted


def test_the_phase_of_the_windows_is_that_of_their_first_boundary():
    assert window_phase(dump(), 3000) == 2_000_000


def routine():
    b = Builder("some", TRN2)
    x, small = b.tile((128, 512), "float32"), b.tile((128, 4), "float32")
    b.dma_copy(dst=x, src=b.param("x", (128, 512), "float32"), engine=Engine.SYNC)
    for _ in range(2):
        acc = b.psum((128, 512))
        b.nc_matmul(dst=acc, stationary=x[:, :128], moving=x)
        b.tensor_copy(dst=x, src=acc)
    b.tensor_copy(dst=b.tile((128, 512), "float32"), src=x)
    b.tensor_reduce(dst=b.tile((128, 1), "float32"), data=small, op="add", axes=1)
    return b.build()


def test_a_prediction_is_read():
    made = routine()
    full = time_routine(made, TRN2, profiled=True)
    found = of_timeline(full, made, full)
    wanted = {
        "matmuls": 2,
        "PSUM copies": 2,
        "copies in SBUF": 1,
        "small reductions": 1,
        "triggers sync": 1,
        "triggers": 1,
        "transfers": 1,
        "bytes": 128 * 512 * 4,
    }
    assert {name: count for name, count in found.counts.items() if count} == wanted
    assert found.times["total"] == full.total
    slow = time_routine(made, TRN2, profiled=True, window_phase=0)
    assert of_timeline(slow, made, full).counts["PE at half rate"] == 2


def test_errors_are_relative_to_what_was_measured():
    chip = ProfileQuantities({"total": 10.0, "half-rate matmuls[128]:float32": 5.0}, {"matmuls": 4, "transfers": 0})
    model = ProfileQuantities({"total": 12.0}, {"matmuls": 4, "triggers": 0, "copies in SBUF": 1})
    found = {q.name: q for q in compare(chip, model)}
    assert list(found) == ["total", "matmuls", "copies in SBUF"], "nothing on both sides is not listed"
    assert found["total"].error == pytest.approx(0.2)
    assert found["matmuls"].error == 0
    assert found["copies in SBUF"].error is None

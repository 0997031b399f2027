# SPDX-License-Identifier: Apache-2.0
"""Single effects of the model, each against the figure or the rule that it comes from."""

from __future__ import annotations

import pytest

from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.program import Builder
from trnlab.sim.timing import time_routine, work_cost

NS = 1000
TRN1, TRN2, TRN3 = (chips.get(name) for name in ("trn1", "trn2", "trn3"))


def stream(chip, nbytes, queues=4):
    """Loads of 1 MiB, one after the other on several queues; returns bytes per second from first to last byte."""
    b = Builder("stream", chip)
    h, tiles = b.param("h", (128, 8192), "uint8"), b.pool((128, 8192), "uint8", bufs=12)
    count = nbytes >> 20
    for i in range(count):
        b.dma_copy(dst=tiles.next(), src=h, queue=i % queues)
    t = time_routine(b.build(), chip)
    return nbytes * 1e12 / int(t.done.max() - t.completion - t.begin.min())


def test_cores_that_share_a_stack_of_hbm_share_its_bandwidth():
    """A core of Trainium2 alone is bound by its DMA engines, beside its neighbour by half of the stack."""
    one, both = (chips.with_cores_at_work(TRN2, cores) for cores in (1, 2))
    assert both.hbm.bandwidth.value == TRN2.hbm.bandwidth.value == pytest.approx(TRN2.hbm.alone.value / 2, rel=0.02)
    alone, shared = stream(one, 32 << 20), stream(both, 32 << 20)
    assert shared < both.hbm.bandwidth.value
    assert alone / shared > 1.01
    assert stream(chips.with_cores_at_work(TRN1, 2), 8 << 20) == stream(TRN1, 8 << 20)  # a stack of its own


def test_loads_are_slower_than_stores():
    """23.1 against 27.2 bytes/ns and engine (trn2): reading HBM takes longer, and begins with a stall."""
    chip = chips.with_cores_at_work(TRN2, 1)
    b = Builder("both ways", chip)
    h, x = b.param("h", (128, 4096), "uint8"), b.tile((128, 4096), "uint8")
    b.dma_copy(dst=x, src=h)
    b.dma_copy(dst=h, src=x)
    load, store = (t := time_routine(b.build(), chip)).ops
    assert store.lane_time / NS == pytest.approx(8 * 155.6, rel=0.002)
    assert load.lane_time / NS == pytest.approx(8 * (5 + 4096 / 23.12) + 57, rel=0.002)
    assert len(t) == 2


def test_who_makes_the_descriptors_decides_how_long_who_is_busy():
    """trn2: a ring in HBM 86 ns, hardware 600 ns, GpSimdE's software 581 ns; first byte 0.9, 1.25 and 0.63 us on."""
    leads = {}
    for engine, mode in ((Engine.SYNC, "none"), (Engine.SYNC, "unknown"), (Engine.GPSIMD, "unknown")):
        b = Builder("store", TRN2)
        b.dma_copy(
            dst=b.param("h", (128, 512), "float32"), src=b.tile((128, 512), "float32"), engine=engine, dge_mode=mode
        )
        t = time_routine(b.build(), TRN2)
        leads[engine.name, mode] = ((t.end[0] - t.start[0]) / NS, (t.begin[0] - t.start[0]) / NS)
    assert leads == {
        ("SYNC", "none"): (86, 899),
        ("SYNC", "unknown"): (600, 1250),
        ("GPSIMD", "unknown"): (581, 633),
    }


def test_a_queue_moves_data_as_fast_as_its_descriptors_were_made():
    """Descriptors are made ahead: short transfers behind a long one follow it without another interval between."""
    b = Builder("behind", TRN2)
    h, tiles = (
        b.param("h", (128, 8192), "float32"),
        [b.tile((128, 8192), "float32"), *(b.tile((128, 128), "float32") for _ in range(4))],
    )
    b.dma_copy(dst=tiles[0], src=h)
    for tile in tiles[1:]:
        b.dma_copy(dst=tile, src=h[:, :128])
    t = time_routine(b.build(), TRN2)
    gaps = [(t.begin[i + 1] - t.begin[i]) / NS for i in range(1, 4)]
    assert all(gap == pytest.approx(t.ops[t.op[1]].lane_time / NS, rel=0.01) for gap in gaps)
    assert gaps[0] < TRN2.dma.queue_interval.value


@pytest.mark.parametrize("chip", [TRN1, TRN2, TRN3], ids=lambda chip: chip.name)
def test_numbers_from_memory_into_registers_are_slow(chip):
    """What waits for an address that is chosen at run time waits about 600 cycles of VectorE."""
    b = Builder("register", chip)
    x, register = b.tile((1, 1), "int32"), b.tile((1, 1), "int32")
    b.memset(dst=x, value=1)
    b.register_load(dst=register, src=x, engine=Engine.VECTOR)
    b.register_move(dst=register, src=register, engine=Engine.VECTOR)
    t = time_routine(b.build(), chip)
    load, move = (int(t.end[i] - t.start[i]) for i in (1, 2))
    assert load / 1e12 * chip.vector.clock.value == pytest.approx(600, rel=0.32)
    assert move < load / 10


def test_transposes_run_behind_other_work_on_trainium3():
    """Almost twice as many in the same time; each takes as long as before."""

    def took(chip):
        b = Builder("transposes", chip)
        x, identity = b.tile((128, 128), "bfloat16"), b.tile((128, 128), "bfloat16")
        for tile in (x, identity):
            b.memset(dst=tile, value=1.0)
        for _ in range(8):
            b.nc_matmul(dst=b.psum((128, 128), "bfloat16"), stationary=x, moving=identity, is_transpose=True)
        t = time_routine(b.build(), chip)
        return int(t.start[9] - t.start[3]), int(t.done[9] - t.start[9])

    (older, latency), (newer, same) = took(TRN2), took(TRN3)
    assert newer == pytest.approx(older / 2, rel=0.02)
    assert same == pytest.approx(latency, rel=0.02)


def test_mx_matmuls_run_at_four_times_the_rate_of_bfloat16():
    """Four values to a row and column, one pass: what the published peak says."""
    work = next(w for w in _mx().works if w.kind == "pe.matmul_mx")
    rate = work.flops / (work_cost(work, TRN3).busy / 1e12)
    assert rate == pytest.approx(TRN3.peak_flops("float8_e4m3fn_x4"), rel=0.02)
    assert TRN3.peak_flops("float8_e4m3fn_x4") == pytest.approx(4 * TRN3.peak_flops("bfloat16"), rel=0.01)


def _mx():
    b = Builder("mx", TRN3)
    data, scale = b.tile((128, 512), "float8_e4m3fn_x4"), b.tile((128, 512), "float8_e8m0fnu")
    b.nc_matmul_mx(
        dst=b.psum((128, 512)),
        stationary=data[:, :128],
        moving=data,
        stationary_scale=scale[:, :128],
        moving_scale=scale,
    )
    return b.build()

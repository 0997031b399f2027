# SPDX-License-Identifier: Apache-2.0
"""What real chips were seen to do, against the model. Sources of the numbers are with the figures in `chips`."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest

from trnlab import chips
from trnlab.isa.base import Engine
from trnlab.program import Builder
from trnlab.sim.timing import layout, order, time_routine
from trnlab.units import cycles_to_ps

NS = 1000
TRN1, TRN2 = chips.get("trn1"), chips.get("trn2")


def intervals(timeline):
    return [int(b - a) / NS for a, b in zip(timeline.start, timeline.start[1:])]


def took(timeline, i):
    return int(timeline.done[i] - timeline.start[i]) / NS


def test_trn1_chain_of_dependent_activates_starts_every_189_ns():
    b = Builder("chain", TRN1)
    x = b.tile((128, 1), "float32")
    for _ in range(5):
        b.activation(dst=x, data=x, op="copy")
    timeline = time_routine(b.build(), TRN1)
    assert intervals(timeline) == pytest.approx([189] * 4, rel=0.005)
    assert took(timeline, 0) == pytest.approx(159, rel=0.005)


def test_trn1_tensor_tensor_of_8192_floats_takes_14_97_us():
    b = Builder("tt", TRN1)
    x, y = b.tile((128, 8192), "float32"), b.tile((128, 8192), "float32")
    b.tensor_tensor(dst=x, data1=x, data2=y, op="add")
    assert took(time_routine(b.build(), TRN1), 0) == pytest.approx(14_970, rel=0.002)


def test_trn1_activate_of_8192_floats_takes_about_6_us():
    b = Builder("act", TRN1)
    x, y = b.tile((128, 8192), "float32"), b.tile((128, 8192), "float32")
    b.activation(dst=x, data=y, op="copy")
    assert took(time_routine(b.build(), TRN1), 0) == pytest.approx(6_000, rel=0.01)


@pytest.mark.parametrize(("partitions", "columns", "expected"), [(4, 4096, 3710), (128, 128, 400)])
def test_trn2_exp(partitions, columns, expected):
    """The second of two: the first also loads the table (1.33 us). Profiles show exp 20 ns shorter than this."""
    b = Builder("exp", TRN2)
    x, y = b.tile((partitions, columns), "bfloat16"), b.tile((partitions, columns), "bfloat16")
    b.activation(dst=x, data=y, op="exp")
    b.activation(dst=x, data=y, op="exp")
    timeline = time_routine(b.build(), TRN2)
    assert took(timeline, 1) == pytest.approx(expected, rel=0.04)
    assert took(timeline, 0) - took(timeline, 1) == pytest.approx(1326, rel=0.001)


def test_tables_are_loaded_while_a_function_waits():
    """Those of the first function from the start of the program on, others once ScalarE has nothing else to do."""
    b = Builder("functions", TRN2)
    x = b.tile((128, 2048), "float32")
    source = b.param("x", (128, 2048), "float32")
    b.dma_copy(dst=x, src=source)
    b.activation(dst=x, data=x, op="exp")
    part = x[:, :64]
    b.tensor_scalar(dst=part, data=part, op0="multiply", operand0=2.0, engine=Engine.VECTOR)
    b.activation(dst=x, data=x, op="gelu")
    b.activation(dst=x, data=x, op="gelu")
    timeline = time_routine(b.build(), TRN2)
    exp, first, second = (timeline.end[i] - timeline.start[i] for i in (1, 3, 4))
    assert exp == second, "its table was there when the data arrived"
    assert timeline.start[3] > timeline.end[1]
    assert first - second == round(TRN2.scalar.table_load.value * 1000) - (timeline.start[3] - timeline.end[1])


@pytest.mark.parametrize(
    ("dtype", "columns", "expected"),
    [("bfloat16", 512, 217), ("bfloat16", 128, 55.5), ("float32", 512, 859)],
)
def test_trn2_matmuls_issue(dtype, columns, expected):
    b = Builder("mm", TRN2)
    stationary, moving = b.tile((128, 128), dtype), b.tile((128, columns), dtype)
    acc = b.psum((128, columns))
    for k in range(6):
        b.nc_matmul(dst=acc, stationary=stationary, moving=moving, accumulate=k > 0)
    timeline = time_routine(b.build(), TRN2)
    assert intervals(timeline)[1:] == pytest.approx([expected] * 4, rel=0.015)  # the first waits for its weights


def test_trn2_matmul_result_is_there_163_ns_after_the_last_column():
    b = Builder("mm", TRN2)
    stationary, moving = b.tile((128, 128), "bfloat16"), b.tile((128, 512), "bfloat16")
    for _ in range(2):
        b.nc_matmul(dst=b.psum((128, 512)), stationary=stationary, moving=moving)
    first, second = (took(time_routine(b.build(), TRN2), i) for i in range(2))
    assert second == pytest.approx(377, rel=0.01)
    assert first - second == pytest.approx(128 / 4 / 2.4, rel=0.1)  # loading its weights shows


def test_trn2_vector_and_scalar_evict_a_bank():
    """512 fp32 from PSUM: VectorE 691 ns and every 593 ns, ScalarE 585 ns and every 480 ns."""
    b = Builder("evict", TRN2)
    acc = b.psum((128, 512))
    tiles = [b.tile((128, 512), "float32") for _ in range(2)]
    for engine in (Engine.VECTOR, Engine.VECTOR, Engine.SCALAR, Engine.SCALAR):
        b.tensor_copy(dst=tiles[engine is Engine.SCALAR], src=acc, engine=engine)
    timeline = time_routine(b.build(), TRN2)
    assert [took(timeline, i) for i in range(4)] == pytest.approx([691, 691, 585, 585], rel=0.015)
    vector, scalar = timeline.start[1] - timeline.start[0], timeline.start[3] - timeline.start[2]
    assert vector / NS == pytest.approx(593, rel=0.01)
    assert scalar / NS == pytest.approx(480, rel=0.01)


def test_trn2_tensor_scalar_modes():
    """512 elements SBUF to SBUF: 481 ns in fp32, 348 ns in bf16; 128 from PSUM 348 ns."""
    b = Builder("ts", TRN2)
    operand = b.tile((128, 1), "float32")
    for dtype in ("float32", "bfloat16"):
        x = b.tile((128, 512), dtype)
        b.tensor_scalar(dst=x, data=x, operand0=operand, op0="multiply", engine=Engine.VECTOR)
    x, acc = b.tile((128, 128), "float32"), b.psum((128, 128))
    b.tensor_scalar(dst=x, data=acc, operand0=operand, op0="multiply", engine=Engine.VECTOR)
    timeline = time_routine(b.build(), TRN2)
    assert [took(timeline, i) for i in range(3)] == pytest.approx([481, 348, 348], rel=0.02)


def _reduction(b, columns):
    b.tensor_reduce(dst=b.tile((128, 1), "float32"), data=b.psum((128, columns)), op="max")


def _reciprocal(b, columns):
    b.reciprocal(dst=b.tile((128, columns), "float32"), data=b.tile((128, columns), "float32"))


def _activation(b, columns):
    for _ in range(3):
        b.activation(dst=b.tile((128, columns), "float32"), data=b.psum((128, columns)), op="exp")


def _transpose(dtype):
    def record(b, columns):
        for _ in range(3):
            b.nc_transpose(dst=b.psum((columns, 128), dtype), data=b.tile((128, columns), dtype))

    return record


def _matmul(dtype):
    def record(b, columns):
        stationary, moving = b.tile((128, 128), dtype), b.tile((128, columns), dtype)
        for _ in range(3):
            b.nc_matmul(dst=b.psum((128, columns)), stationary=stationary, moving=moving)

    return record


SINGLE = (
    (_reduction, 512, 687),
    (_reciprocal, 4, 178),
    (_reciprocal, 8, 202),
    (_activation, 512, 705),
    (_transpose("float32"), 128, 272),
    (_transpose("bfloat16"), 128, 219),
    (_matmul("float32"), 128, 386),
    (_matmul("float32"), 512, 1022),
)


def test_trn2_single_instructions_of_the_profiles():
    """Medians of what six profiles of attention kernels hold, in ns, at full rate of the PE array."""
    errors = []
    for record, columns, expected in SINGLE:
        b = Builder("single", TRN2)
        record(b, columns)
        timeline = time_routine(b.build(), TRN2)
        found = median(took(timeline, i) for i in range(len(timeline.start)))  # weights and tables are there
        errors.append(abs(found / expected - 1))
    assert median(errors) < 0.02
    assert max(errors) < 0.12


def _products(chip, columns, stationary, count):
    b = Builder("products", chip)
    weights, moving = b.tile((128, stationary), "bfloat16"), b.tile((128, columns), "bfloat16")
    acc = b.psum((stationary, columns))
    for k in range(count):
        b.nc_matmul(dst=acc, stationary=weights, moving=moving, accumulate=k > 0, stop=k == count - 1)
    return b.build()


@pytest.mark.parametrize(("stationary", "expected"), [(96, 219), (1, 188)])
def test_trn1_matmuls_of_128_columns(stationary, expected):
    """The second of two: the vendor's pictures time the load of weights apart. The model says
    203 ns of both."""
    timeline = time_routine(_products(TRN1, 128, stationary, 2), TRN1)
    assert took(timeline, 1) == pytest.approx(expected, rel=0.08)


@pytest.mark.parametrize("phase", [0, 1_000_000, 3_000_000])
def test_half_rate_windows_only_make_the_array_slower(phase):
    """Never faster than full rate, never slower than half; after long work the array runs at full rate."""
    routine = _products(TRN2, 512, 128, 200)
    full, paced = time_routine(routine, TRN2), time_routine(routine, TRN2, window_phase=phase)
    whole = [t.done[-1] - t.start[0] for t in (full, paced)]
    assert whole[0] < whole[1] < 2 * whole[0]
    assert paced.end[-1] - paced.start[-1] == full.end[-1] - full.start[-1]
    issue = cycles_to_ps(TRN2.tensor.issue.value, TRN2.tensor.clock.value)  # vanishes at half rate
    assert paced.end[0] - paced.start[0] == pytest.approx(2 * (full.end[0] - full.start[0] - issue), abs=2)
    latency = cycles_to_ps(TRN2.tensor.half_rate_latency.value, TRN2.tensor.clock.value)
    assert paced.done[0] - paced.end[0] == pytest.approx(latency, abs=2)


@pytest.mark.parametrize(("share", "rate"), [(0.36, 2), (0.39, 1)])
def test_a_window_is_judged_by_its_work(share, rate):
    """Windows of matmuls with idle time between them: what was done, not how long it took, decides about the next."""
    window = TRN2.tensor.rate_window.value * 1000
    parameters = np.zeros(layout.PARAMETERS, np.int64)
    parameters[layout.WINDOW], parameters[layout.FULL_ABOVE] = round(window), round(window * 0.375)
    for half in (0, 1):
        state = np.array([round(window), 0, half], np.int64)
        work = round(window * share)
        assert order._paced(0, work, 2 * work, parameters, state) == work * (1 + half)
        assert order._paced(round(window), 1000, 2000, parameters, state) == 1000 * rate


def test_the_profiler_lengthens_the_start_only():
    routine = _products(TRN2, 512, 128, 4)
    plain, profiled = time_routine(routine, TRN2), time_routine(routine, TRN2, profiled=True)
    assert profiled.total - plain.total == round(TRN2.sync.profiler.value * 1000)
    assert (profiled.done - plain.done).min() == (profiled.done - plain.done).max() > 0


def test_trn2_dma_of_32_kib_on_one_engine():
    """[4, 4096] bf16: 1416 ns of data on one DMA engine when loading, 1223 ns when storing. SyncE's trigger to the
    first byte 1.3 to 1.6 us in the profiles, last byte to a waiting engine 0.31 to 0.45 us."""
    chip = chips.with_figures(TRN2, {"hbm.bandwidth": TRN2.hbm.alone})
    b = Builder("load", chip)
    h, x = b.param("h", (4, 4096), "bfloat16"), b.tile((4, 4096), "bfloat16")
    b.dma_copy(dst=x, src=h)
    b.tensor_copy(dst=x, src=x, engine=Engine.VECTOR)
    b.dma_copy(dst=h, src=x)
    timeline = time_routine(b.build(), chip)
    assert timeline.ops[timeline.op[0]].lanes == 1
    last_byte = timeline.done - timeline.completion
    assert (last_byte[0] - timeline.begin[0]) / NS == pytest.approx(1416, rel=0.08)
    assert (last_byte[2] - timeline.begin[2]) / NS == pytest.approx(1223, rel=0.03)
    assert 1280 <= (timeline.begin[0] - timeline.start[0]) / NS <= 1570
    assert 312 <= (timeline.start[1] - last_byte[0]) / NS <= 454


def test_trn2_dma_of_a_small_tile_over_16_engines():
    """[128, 128] bf16 through GpSimdE: 739 ns from trigger to first byte, 468 ns of data with skewed engines."""
    b = Builder("load", TRN2)
    h, x = b.param("h", (128, 128), "bfloat16"), b.tile((128, 128), "bfloat16")
    b.dma_copy(dst=x, src=h, engine=Engine.GPSIMD)
    timeline = time_routine(b.build(), TRN2)
    op = timeline.ops[timeline.op[0]]
    assert op.lanes == 16
    assert (timeline.begin[0] - timeline.start[0]) / NS == pytest.approx(739, rel=0.06)
    assert op.lane_time / NS < 468


@pytest.mark.parametrize("chip", [TRN1, TRN2], ids=["trn1", "trn2"])
def test_long_rows_move_at_the_published_rate(chip):
    """17 and 23 bytes/ns per engine, 272 and 368 GB/s for the core, less the descriptors."""
    b = Builder("load", chip)
    h, x = b.param("h", (128, 8192), "float32"), b.tile((128, 8192), "float32")
    b.dma_copy(dst=x, src=h)
    timeline = time_routine(b.build(), chip)
    seconds = timeline.ops[timeline.op[0]].lane_time / 1e12
    published = {"trn1": 272e9, "trn2": 368e9}[chip.name]
    assert 128 * 8192 * 4 / seconds == pytest.approx(published, rel=0.05)


def test_short_rows_move_slowly():
    """Tiles of 128 rows on one queue, against the vendor's curve of bandwidth relative to rows of 32 KiB.

    The curve does not name its chip; SyncE's measured triggers are somewhat faster than it says.
    """
    rates = {}
    for row in (64, 256, 512, 1024, 2048, 4096, 32768):
        b = Builder("load", TRN2)
        h, x = b.param("h", (128, row // 4), "float32"), b.pool((128, row // 4), "float32", bufs=6)
        for _ in range(24):
            b.dma_copy(dst=x.next(), src=h)
        timeline = time_routine(b.build(), TRN2)
        rates[row] = 16 * 128 * row / int(timeline.begin[20] - timeline.begin[4])
    relative = {row: rate / rates[32768] for row, rate in rates.items()}
    published = {64: 0.026, 256: 0.10, 512: 0.21, 1024: 0.42, 2048: 0.81, 4096: 0.966}
    for row, expected in published.items():
        assert expected * 0.95 <= relative[row] <= expected * 1.65, (row, relative)

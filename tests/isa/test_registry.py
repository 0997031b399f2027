# SPDX-License-Identifier: Apache-2.0
"""The set as a whole: one file per instruction, unique codes, a page for each, and amounts of work that add up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from isa_cases import CHIPS, Case, tile

from trnlab import isa
from trnlab.errors import ConstraintError, Location
from trnlab.isa.base import CODES, Engine, Memory
from trnlab.isa.documentation import signature
from trnlab.isa.random.random_streams import state_words
from trnlab.program.builder import Builder

FOLDER = Path(isa.__file__).parent
NAMES = sorted(isa.REGISTRY)
TRN1, TRN2, TRN3 = CHIPS
P, H = Memory.PSUM, Memory.HBM


def test_one_file_per_instruction() -> None:
    """<name>.py within isa/ registers exactly the instruction of that name, and no other file registers one."""
    registering = {path.stem: path for path in FOLDER.rglob("*.py") if "\n@register\n" in path.read_text()}
    assert set(registering) == set(NAMES)
    for name in NAMES:
        assert type(isa.REGISTRY[name]).__module__ == f"trnlab.isa.{registering[name].parent.name}.{name}"
        assert registering[name].read_text().count("\n@register\n") == 1


def test_opcodes_are_unique_and_stable() -> None:
    """Programs are stored with these numbers: they never change their meaning."""
    assert {instr.opcode: instr for instr in isa.REGISTRY.values()} == isa.BY_OPCODE
    assert {instr.name: instr.opcode for instr in isa.REGISTRY.values()} == {
        "nc_matmul": 1,
        "nc_transpose": 2,
        "activation": 3,
        "tensor_copy": 4,
        "memset": 5,
        "tensor_tensor": 6,
        "tensor_scalar": 7,
        "scalar_tensor_tensor": 8,
        "tensor_reduce": 9,
        "reciprocal": 10,
        "iota": 11,
        "affine_select": 12,
        "select_reduce": 13,
        "tensor_copy_predicated": 14,
        "rng": 15,
        "dropout": 16,
        "dma_copy": 17,
        "nc_matmul_mx": 18,
        "dma_transpose": 19,
        "tensor_partition_reduce": 20,
        "tensor_scalar_cumulative": 21,
        "activation_reduce": 22,
        "activate2": 23,
        "local_gather": 24,
        "nc_n_gather": 25,
        "bn_stats": 26,
        "bn_aggr": 27,
        "tensor_tensor_scan": 28,
        "nc_stream_shuffle": 29,
        "set_rng_seed": 30,
        "rand_set_state": 31,
        "rand_get_state": 32,
        "rand2": 33,
        "exponential": 34,
        "max8": 35,
        "sequence_bounds": 36,
        "tensor_scalar_reduce": 37,
        "core_barrier": 38,
        "dma_compute": 39,
        "quantize_mx": 40,
        "range_select": 41,
        "sendrecv": 42,
        "register_alloc": 43,
        "register_move": 44,
        "register_load": 45,
        "register_store": 46,
        "nc_find_index8": 47,
        "nc_match_replace8": 48,
        "nonzero_with_count": 49,
        "topk": 50,
        "all_reduce": 60,
        "reduce_scatter": 61,
        "all_gather": 62,
        "all_to_all": 63,
        "collective_permute": 64,
        "collective_permute_reduce": 65,
        "all_gather_v": 66,
        "all_to_all_v": 67,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_instruction_is_documented(name: str) -> None:
    """The page has the signature, each operand, attribute and limit, the engines, the cost and the source."""
    instr, text = isa.REGISTRY[name], isa.describe(name)
    assert text.startswith(f"# {name}\n")
    assert signature(instr) in text
    assert instr.source
    assert instr.source in text
    for word in [*(s.name for s in instr.operands), *instr.attrs, *(e.name.lower() for e in instr.engines)]:
        assert re.search(rf"\b{word}\b", text.split("## Operands")[1]), word
    for limit in [*instr.limits, *(str(size) for size in instr.sizes.values())]:
        assert limit in text
    assert "## Engines and cost" in text
    assert text.count("`") >= 2, "a cost class"
    assert max(map(len, text.splitlines())) < 200


def test_destinations_come_first() -> None:
    """Bit i of Work.psum and the roles of operand records count from the destinations."""
    for instr in isa.REGISTRY.values():
        roles = [spec.role for spec in instr.operands]
        assert roles == sorted(roles), instr.name
        assert roles[0] == "dst"
        assert set(roles) <= {"dst", "src"}


def work_of(name: str, engine: Engine | None = None, chip: Any = TRN2, attrs: Any = None, **ops: Any) -> isa.Work:
    """The work of a valid case; operands as arguments of `tile`."""
    instr = isa.REGISTRY[name]
    tiles = {n: tile(*spec) if isinstance(spec, tuple) else spec for n, spec in ops.items()}
    return Case(instr, chip, instr.engines[0] if engine is None else engine, tiles, attrs or {}).validate()


def test_work_of_the_pe_array() -> None:
    """A matmul has K rows, M and N columns, two operations per product; a transpose streams an identity of size P."""
    work = work_of(
        "nc_matmul", dst=((96, 500), "float32", P), stationary=((64, 96), "bfloat16"), moving=((64, 500), "float16")
    )
    assert (work.kind, work.k, work.m, work.n, work.itemsize, work.psum) == ("pe.matmul", 64, 96, 500, 2, 1)
    assert work.flops == 2 * 64 * 96 * 500
    work = work_of(
        "nc_matmul", dst=((8, 8), "float32", P), stationary=((4, 8), "tfloat32"), moving=((4, 8), "float32")
    )
    assert work.dtype == "float32", "the slower of two formats of one width sets the passes"
    work = work_of("nc_transpose", dst=((100, 30), "bfloat16", P), data=((30, 100), "bfloat16"))
    assert (work.kind, work.n, work.m, work.k, work.flops) == ("pe.transpose", 30, 100, 30, 0)


def test_work_tells_the_vector_modes_apart() -> None:
    """What decides VectorE's rates: the common format, operands in PSUM, strides, and the operator."""
    half = ((128, 256), "bfloat16")
    work = work_of("tensor_tensor", dst=half, data1=half, data2=half)
    assert (work.kind, work.n, work.k, work.dtype, work.psum, work.strided, work.m) == (
        "vector.tensor_tensor",
        256,
        128,
        "bfloat16",
        0,
        False,
        1,
    )
    assert work_of("tensor_tensor", attrs={"op": "max"}, dst=half, data1=half, data2=half).m == 0
    assert work_of("tensor_tensor", dst=half, data1=half, data2=((128, 256), "float16")).dtype == "float16"
    assert work_of("tensor_tensor", dst=half, data1=half, data2=((128, 256), "int16")).dtype == "mixed"
    work = work_of("tensor_tensor", dst=((128, 256),), data1=half, data2=((128, 256), "float32", P))
    assert (work.dtype, work.itemsize, work.psum) == ("mixed", 4, 0b100)
    strided = tile((128, 256), "bfloat16").with_dims((2, 128))
    work = work_of("tensor_copy", dst=((128, 128), "bfloat16"), src=strided)
    assert (work.strided, work.wide_stride) == (True, False)
    assert work_of("tensor_copy", dst=((128, 4),), src=tile((128, 40)).with_dims((10, 4))).wide_stride
    limit = tile((128, 40)).with_dims((4, 10))
    assert not work_of("tensor_copy", dst=((128, 10),), src=limit).wide_stride, "16 bytes are not too many"
    column = tile((128, 40)).with_dims((40, 1))
    assert not work_of("tensor_copy", dst=((128, 1),), src=column).strided, "one element has no stride"
    work = work_of("tensor_scalar", dst=half, data=half, operand0=((128, 1), "float32"), attrs={"op1": None})
    assert work.dtype == "bfloat16", "values per partition are not streamed"
    work = work_of("tensor_reduce", dst=((128, 1),), data=((128, 3, 256),), attrs={"axes": 2})
    assert (work.n, work.flops) == (768, 128 * 768)
    even = {"op0": "subtract", "op1": "multiply", "operand0": 1.0}
    assert work_of("scalar_tensor_tensor", dst=half, data=half, operand1=half, attrs=even).m == 1
    assert work_of("memset", dst=half).m == 1
    assert work_of("memset", dst=half, attrs={"value": 1.0}).m == 0
    assert work_of("memset", dst=((128, 256),)).m == 0


def test_work_of_functions() -> None:
    """m is the table set, zero for those that need none; a row sum is a class of its own."""
    x, v = ((128, 256),), ((128, 1),)
    assert work_of("activation", dst=x, data=x, attrs={"op": "relu"}).m == 0
    exp, log = (work_of("activation", dst=x, data=x, attrs={"op": op}) for op in ("exp", "log"))
    assert exp.kind == log.kind == "scalar.activation"
    assert 0 != exp.m != log.m != 0
    summed = work_of("activation", dst=x, data=x, reduce_res=v, attrs={"op": "exp"})
    assert summed == isa.Work("scalar.activation_reduce", 256, exp.m, 128, flops=4 * 128 * 256)


@pytest.mark.parametrize(
    ("dst", "src", "n", "m", "k"),
    [
        (((128, 512),), ((128, 512), "float32", H), 2048, 128, 128),  # one row of SBUF each
        (((8, 512),), ((8, 512), "float32", H), 2048, 8, 8),
        (((128, 512), "bfloat16", H), ((128, 512),), 2048, 128, 128),  # a cast moves the wider format
        (((128, 64, 4),), tile((128, 64, 8), "float32", H)[:, :, 0:4], 16, 128 * 64, 128),  # runs of four
        (((64, 128),), tile((128, 64), "float32", H).with_dims((0, 128))[0:64], 4, 64 * 128, 64),  # single elements
        (((1024, 1024), "float32", H), ((1024, 1024), "float32", H), 65536, 64, 128),  # longest descriptor
        (((64, 32),), ((64, 32),), 128, 64, 64),
    ],
)
def test_work_of_transfers(dst: Any, src: Any, n: int, m: int, k: int) -> None:
    """Descriptors are the shorter contiguous run of the two sides."""
    work = work_of("dma_copy", dst=dst, src=src)
    assert (work.kind, work.n, work.m, work.k) == ("dma.copy", n, m, k)
    assert work.nbytes == n * m
    assert work.flops == 0


def test_work_of_a_gather() -> None:
    """One descriptor per row, although the table itself is contiguous."""
    ops = {"dst": ((100, 64), "bfloat16"), "src": ((5000, 64), "bfloat16", H), "index": ((100, 1), "int32")}
    work = work_of("dma_copy", Engine.GPSIMD, **ops)
    assert (work.kind, work.n, work.m, work.k, work.nbytes) == ("dma.gather", 128, 100, 100, 12800)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda c: c.name)
def test_through_the_builder(chip: Any) -> None:
    """One routine with every instruction: names resolve, defaults are filled in, equal instructions share work."""
    b = Builder("all", chip)
    x = b.param("x", (512, 64), "float32")
    t, u, row = b.tile((64, 64), "float32"), b.tile((64, 64), "float32"), b.tile((64, 1), "float32")
    mask, index = b.tile((64, 64), "uint8"), b.tile((64, 1), "int32")
    acc = b.psum((64, 64))
    b.dma_copy(dst=t, src=x[:64])
    b.dma_copy(dst=t, src=x[64:128], queue=3)
    b.iota(dst=index, pattern=((1, 1),), channel_multiplier=1)
    b.dma_copy(dst=u, src=x, index=index, engine=Engine.GPSIMD)
    b.nc_matmul(dst=acc, stationary=t, moving=u, stop=False)
    b.nc_matmul(dst=acc, stationary=t, moving=u, accumulate=True)
    b.activation(dst=u, data=acc, bias=row, scale=0.5, op="gelu", reduce_res=row)
    b.nc_transpose(dst=acc, data=u)
    b.tensor_copy(dst=t, src=acc)
    b.memset(dst=u, value=1)
    b.tensor_tensor(dst=u, data1=t, data2=u, op="subtract")
    b.tensor_scalar(dst=mask, data=u, operand0=0.0, op0="is_gt")
    b.scalar_tensor_tensor(dst=u, data=t, operand0=row, operand1=u, op0="multiply", op1="add")
    b.tensor_reduce(dst=row, data=u, op="max")
    b.reciprocal(dst=row, data=row)
    b.affine_select(dst=u, on_true=t, pattern=((-1, 64),), channel_multiplier=1, on_false=-1e9)
    b.select_reduce(dst=u, predicate=mask, on_true=t, on_false=0.0, reduce_res=row)
    b.tensor_copy_predicated(dst=u, src=t, predicate=mask)
    b.rng(dst=index, seed=5)
    b.dropout(dst=u, data=t, prob=0.25, seed=index)
    _the_rest(b, chip)
    routine = b.build()
    assert {isa.BY_OPCODE[code].name for code in routine.opcode.tolist()} == {
        name for name, instr in isa.REGISTRY.items() if instr.exists_on(chip)
    }
    assert routine.work[0] == routine.work[1], "two equal transfers"
    matmul = dict(routine.attr_table[routine.attr[4]])
    assert (matmul["accumulate"], matmul["stop"], matmul["perf_mode"]) == (False, False, "none")


def _the_rest(b: Builder, chip: Any) -> None:
    """One of each of the other instructions that the chip has."""
    t, row, acc = b.tile((64, 64), "float32"), b.tile((64, 1), "float32"), b.tile((64, 1), "float32")
    eight, places, words = b.tile((64, 8), "float32"), b.tile((64, 8), "uint32"), b.tile((64, 64), "uint32")
    hbm, state = b.param("h", (64, 64), "float32"), b.tile((64, state_words(Engine.VECTOR, chip)), "uint32")
    b.activation_reduce(dst=t, data=t, op="exp", reduce_res=row)
    b.activation(dst=t, data=t, reduce_cmd="reduce", accumulators=acc, reduce_res=row)
    b.tensor_scalar_reduce(dst=t, data=t, operand0=2.0, reduce_res=row)
    b.tensor_scalar_cumulative(dst=t, src=t, imm0=row, op0="add", op1="max", reduce_cmd="load_reduce", imm1=0.0)
    b.tensor_tensor_scan(dst=t, data0=t, data1=t, initial=row)
    b.tensor_partition_reduce(dst=t[:1], data=t)
    b.max8(dst=eight, src=t)
    b.nc_find_index8(dst=places, data=t, vals=eight)
    b.nc_match_replace8(dst=t, data=t, vals=eight, imm=-1e30, dst_idx=places)
    b.bn_stats(dst=eight[:, :6], data=t)
    b.bn_aggr(dst=eight[:, 6:8], data=eight[:, :6])
    b.nc_stream_shuffle(dst=t, src=t, shuffle_mask=(0,) * 32)
    b.nc_n_gather(dst=t, data=t, indices=words)
    b.local_gather(dst=t[:, :16], src_buffer=t, index=b.tile((64, 1), "uint16"))
    b.sequence_bounds(dst=t[:1, :32], segment_ids=t[:1, :16])
    half = b.tile((64, 8), "bfloat16")
    b.topk(val_dst=half, idx_dst=places, src=half, n=100)
    b.set_rng_seed(state=state, src_seeds=words[:1, :1])
    b.dma_transpose(dst=t, src=hbm)
    b.dma_compute(dst=hbm, src0=t, src1=t)
    number = b.tile((1, 1), "int32")
    b.register_alloc(dst=number, x=0)
    b.register_move(dst=number, src=5)
    b.register_load(dst=number, src=b.param("count", (1, 1), "int32"))
    b.register_store(dst=b.tile((1, 1), "int16"), src=number)
    parts, numbers = b.param("parts", (256, 64), "float32"), b.param("numbers", (3, 4), "uint32")
    for name in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute"):
        getattr(b, name)(dst=hbm, src=hbm)
    b.collective_permute_reduce(dst=t, src0=t, src1=t)
    groups = ((0, 1, 2, 3),)
    b.all_gather_v(dst=parts, metadata=numbers, src=hbm, groups=groups, joint=True)
    b.all_to_all_v(dst=parts, metadata=numbers, src=hbm, groups=groups)
    if chip.has("logical_cores"):
        b.range_select(dst=t, on_true_tile=t, bound0=row, bound1=row)
        six = b.tile((64, 6), "uint32")
        b.rand_set_state(state=six, src_seeds=six)
        b.rand_get_state(dst=six, state=six)
        b.nonzero_with_count(dst=b.tile((64, 65), "int32"), src=t)
        b.core_barrier(data=hbm)
        b.sendrecv(dst=t, src=t)
    if chip.has("mx_formats"):
        packed, scales = b.tile((64, 2), "float8_e5m2_x4"), b.tile((64, 2), "float8_e8m0fnu")
        b.quantize_mx(dst=packed, dst_scale=scales, src=half, dst_format="float8_e5m2_x4")
        b.nc_matmul_mx(
            dst=b.psum((2, 2)),
            stationary=packed,
            moving=packed,
            stationary_scale=scales,
            moving_scale=scales,
            stationary_format="float8_e5m2_x4",
            moving_format="float8_e5m2_x4",
        )
        b.exponential(dst=t, src=t, max_value=row, reduce_res=row)
        b.activate2(dst=t, data=t, op="gelu", op0="multiply", imm0=2.0, op1="add", imm1=row)
        b.rand2(dst=t, min=0.0, max=1.0, state=state)


def test_the_builder_reports_the_users_line() -> None:
    """A refused instruction says where it was written."""
    b = Builder("wrong", TRN1)
    b.location = Location("model.py", 12, "forward", "y = x @ w")
    with pytest.raises(ConstraintError) as caught:
        b.nc_matmul(
            dst=b.psum((128, 513)), stationary=b.tile((128, 128), "float32"), moving=b.tile((128, 513), "float32")
        )
    assert caught.value.where == b.location
    text = str(caught.value)
    for part in ("TRN406", "model.py:12 in forward", "512", "513", "trn1", "loop over N"):
        assert part in text


@pytest.mark.parametrize(
    ("partitions", "starts"),
    [(1, {0, 32, 64, 96}), (32, {0, 32, 64, 96}), (33, {0, 64}), (64, {0, 64}), (65, {0}), (128, {0})],
)
def test_a_tile_starts_where_its_height_allows(partitions: int, starts: set[int]) -> None:
    """Quadrants up to 32 partitions, halves up to 64, zero above: every place in the array is tried."""
    for first in range(129 - partitions):
        op = tile((partitions, 4), first_partition=first)
        if first in starts:
            work_of("memset", dst=op)
        else:
            with pytest.raises(ConstraintError, match=f"starts on partition {first}"):
                work_of("memset", dst=op)


def test_codes_are_documented_once() -> None:
    """Every code that the rules use is in the table, and no other."""
    used = set()
    for path in FOLDER.rglob("*.py"):
        if path.name != "base.py":
            used |= set(re.findall(r"TRN\d{3}", path.read_text()))
    assert used == set(CODES) - {"TRN410"}, "TRN410 belongs to access patterns"

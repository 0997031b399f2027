# SPDX-License-Identifier: Apache-2.0
"""Runs to look at: one that really ran on the simulated chip, and a summary with round numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trnlab import chips
from trnlab.errors import Location
from trnlab.graph.builder import GraphBuilder
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.profile.data import Profile, Step, step_of
from trnlab.program import Builder
from trnlab.program.routine import Call, Program, ProgramTensor
from trnlab.runtime import device
from trnlab.runtime.analysis.details import details
from trnlab.runtime.run import RunRecord
from trnlab.runtime.session import Session, activate
from trnlab.sim.timing import time_program

SIZE = 256


def really_run(folder: Path, status: str = "complete") -> Path:
    """Three steps of two executables, a product and a sum, in `folder`."""
    session = Session(chips.target("trn1.2xlarge"))
    with activate(session):
        run = session.run = RunRecord(folder, session, Path("/home/me/train.py"), ["--lr", "1e-3"])
        loaded = [device.Loaded(device.compile_graph(graph, session), session) for graph in (product(), total())]
        a = np.eye(SIZE, dtype=np.float32)
        run.reference([3.5, 2.5, 1.5])
        for loss in (3.5, 2.25, 1.75):
            (b,) = loaded[0].run([a, 2 * a])
            loaded[1].run([b, a])
            run.step(loss, tokens=SIZE)
        run.finish(status)
    return folder


def product() -> Any:
    b = GraphBuilder("product")
    x, w = b.input("x", (SIZE, SIZE), float32), b.input("w", (SIZE, SIZE), float32)
    b.loc = Location("/home/me/train.py", 12, "forward", "y = x @ w  # </script>")
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    b.output(b.op("dot_general", x, w, **dims, dtype=float32), "y")
    return b.build()


def total() -> Any:
    b = GraphBuilder("total")
    x, w = b.input("x", (SIZE, SIZE), float32), b.input("w", (SIZE, SIZE), float32)
    b.output(b.add(b.multiply(x, 2.0), w), "z")
    return b.build()


def round_summary(**changes: Any) -> dict[str, Any]:
    """A finished run's summary."""
    return {
        "schema": "trnlab.summary",
        "version": 2,
        "trnlab": "0.1.0",
        "name": "gpt-1",
        "status": "complete",
        "complete": True,
        "script": "/home/me/train.py",
        "arguments": [],
        "started": "2026-08-01T12:00:00+00:00",
        "wall_s": 31.0,
        "step_wall_s": [0.5, 0.2, 0.2],
        "target": "trn1.2xlarge",
        "chip": "trn1",
        "precision": "bf16",
        "stochastic_rounding": False,
        "seed": 0,
        "steps": 3,
        "loss": [4.0, 3.0, 2.5],
        "reference_loss": [4.0, 3.01, 2.5],
        "reference_loss_gap": 0.01,
        "instructions": 30_000,
        "host_fallback_ops": {"setup": 2, "training": 0},
        "host_fallbacks": {"setup": {"aten::normal_": 2}, "training": {}},
        "steps_found_by": "report",
        "compile": {"seconds": 2.5, "cache": "miss", "executables": 1},
        "step": [{"executable": "k", "times": 1}],
        "step_time_s": 0.002,
        "tokens_per_step": 1024,
        "tokens_per_s": 512_000.0,
        "mfu": 0.25,
        "hfu": 0.3,
        "model_flops_per_step": 46_000_000_000,
        "peak_flops": 92e12,
        "instructions_per_step": 10_000,
        "engines": {
            "tensor": {"active": 0.5, "busy": 0.4},
            "vector": {"active": 0.25, "busy": 0.2},
            "dma": {"active": 0.75, "busy": 0.6},
        },
        "critical_path": {"dma": 0.6, "tensor": 0.3, "latency": 0.1, "sync": 0.0},
        "bound_by": "dma",
        "hbm": {"read_bytes": 3 << 20, "write_bytes": 1 << 20, "bandwidth_used": 0.005},
        "memory": {"peak_bytes": 1 << 30, "capacity_bytes": 16 << 30, "parts": {"inputs": 1 << 30}, "largest": []},
        "cost": {
            "usd_per_million_tokens": 0.00075,
            "usd_per_hour": 1.34,
            "price_kind": "on-demand",
            "price_date": "2026-07",
            "price_source": "a price list",
            "cores": 2,
            "cores_used": 1,
        },
        "assumptions": [
            {"figure": "dma.start", "value": 1.0, "unit": "ns", "reason": "r", "halved": -0.02, "doubled": 0.083},
            {"figure": "tensor.issue", "value": 2.0, "unit": "ns", "reason": "r", "halved": -0.05, "doubled": 0.01},
        ],
        **changes,
    }


def big_step(instructions: int) -> Step:
    """A step with so many instructions: tiles loaded, multiplied, put through ScalarE and stored, in turn."""
    chip = chips.get("trn2")
    b = Builder("big", chip)
    x, y = (b.param(name, (128, 512), "bfloat16") for name in ("x", "y"))
    w, acc = b.tile((128, 128), "bfloat16", name="w"), b.psum((128, 512), name="acc")
    tiles = [b.tile((128, 512), "bfloat16", name=f"tile{i}") for i in range(2)]
    b.loc = Location("/home/me/train.py", 12, "forward", "y = gelu(x @ w)")
    b.memset(dst=w, value=1.0)
    for i in range(250):
        tile = tiles[i % 2]
        b.dma_copy(dst=tile, src=x, queue=i % 4)
        b.nc_matmul(dst=acc, stationary=w, moving=tile)
        b.activation(dst=tile, data=acc, op="gelu")
        if i < 249:
            b.dma_copy(dst=y, src=tile, queue=4)
    routine = b.build()
    assert len(routine) == 1000
    tensors = tuple(ProgramTensor(i, name, (128, 512), bfloat16, 1 << 17, "input") for i, name in enumerate("xy"))
    calls = (Call(0, (0, 1), label="dot: mm"),) * (instructions // 1000)
    program = Program("big", chip.name, (routine,), tensors, calls, (0, 1), ())
    timeline = time_program(program, chip)
    return step_of(timeline, details(program, timeline, chip))


def measured_dump() -> dict[str, Any]:
    """What the vendor's profiler would say of a small kernel: a load, a matmul in float32, an activation."""
    pattern = "src=fp32@0x4000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128"
    blank = {"instruction_type": "REGULAR", "evt_wait_time": 1, "hlo_name": ""}
    rows: list[dict[str, Any]] = [
        {"id": 1, "subgroup": "Sync", "opcode": "DMA_DIRECT2D", "timestamp": 100, "duration": 600, "operands": ""},
        {
            "id": 4,
            "subgroup": "Scalar",
            "opcode": "ACTIVATE",
            "timestamp": 1600,
            "duration": 700,
            "operands": "EXP src=fp32@0x2000000[1,1,1][512,1,1] dst=fp32@0x5820[1,1,1][512,1,1]",
            "predecessors": [{"id": 3, "type": "FLOW_DEPENDENCE"}],
        },
    ]
    for id, timestamp, duration in ((2, 1200, 200), (3, 1312, 300)):
        operands = f"S[5] (Tensor)++@complete acc_flags=3 fp32_mode=LOW_HIGH {pattern}"
        rows.insert(
            1,
            {
                "id": id,
                "subgroup": "Tensor",
                "opcode": "MATMUL",
                "timestamp": timestamp,
                "duration": duration,
                "operands": operands,
                "nki_source_location": "kernel.py:12",
            },
        )
    packet = {"duration": 200, "transfer_size": 2048, "dma_queue": "0", "queue_type": "hardware_dynamic"}
    windows = [(1250, 750, 8), (2000, 500, 4)]
    return {
        "instruction": [{**blank, **row} for row in rows],
        "dma": [{**packet, "timestamp": timestamp} for timestamp in (700, 720)],
        "ham": [{"timestamp": since, "duration": length, "k": k, "n": 8} for since, length, k in windows],
        "instruction_usage": [
            {"type": "psum", "timestamp": 1200, "usage_avg": 0.125},
            {"type": "sb", "timestamp": 700, "usage_avg": 0.5},
        ],
        "summary": [{"total_time": 3e-6, "instance_type": "trn2.3xlarge", "tensor_engine_active_time_percent": 0.14}],
        "metadata": [{"last_hw_timestamp": 3000}],
    }


def measured_twin() -> Profile:
    """The same kernel, predicted."""
    chip = chips.get("trn2")
    b = Builder("kernel", chip)
    x = b.param("x", (128, 512), "float32")
    tile, w, acc = b.tile((128, 512), "float32"), b.tile((128, 128), "float32"), b.psum((128, 512))
    b.dma_copy(dst=tile, src=x)
    b.nc_matmul(dst=acc, stationary=w, moving=tile)
    b.activation(dst=tile, data=acc, op="exp")
    routine = b.build()
    tensors = (ProgramTensor(0, "x", (128, 512), float32, 1 << 18, "input"),)
    program = Program("kernel", chip.name, (routine,), tensors, (Call(0, (0,), label="kernel"),), (0,), ())
    timeline = time_program(program, chip)
    return Profile(Path(), {"name": "predicted"}, step_of(timeline, details(program, timeline, chip)))


def two_cores(folder: Path) -> Path:
    """A run of a kernel on a pair of cores, each with half of the rows."""
    from trnlab import nki
    from trnlab.nki import isa as nisa
    from trnlab.nki import language as nl

    def double(x):  # type: ignore[no-untyped-def]
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        first = nl.program_id(0) * 128
        tile = nl.ndarray((128, 512), dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x[first : first + 128, :])
        nisa.tensor_tensor(dst=tile, data1=tile, data2=tile, op=nl.add)
        nisa.dma_copy(dst=out[first : first + 128, :], src=tile)
        return out

    session = Session(chips.target("trn2.3xlarge"))
    with activate(session):
        run = session.run = RunRecord(folder, session, Path("/home/me/kernel.py"), [])
        nki.jit(double)[2](np.ones((256, 512), np.float32))
        run.finish("complete")
    return folder

# SPDX-License-Identifier: Apache-2.0
"""Changes that are made while a kernel is recorded: what a compiler could do and the vendor's is not taken to.

The passes of `trnlab.program.passes` make them, which keep every bit (`tests/program/test_pass_laws.py`). A kernel
that is written so has the time of the recording.
"""

from __future__ import annotations

from trnlab.bench.ideas.change import DMA_GUIDE, PERF_GUIDE, KernelChange
from trnlab.policy import UNLIMITED, Policy

_RELOADS, _FUSION, _OVERLAP, _LARGE, _DMA = (
    f"{PERF_GUIDE}:75 (minimize input data reloading)",
    f"{PERF_GUIDE}:547 (combine instructions)",
    f"{PERF_GUIDE}:329 (overlap data loading with computation)",
    f"{PERF_GUIDE}:404 (sufficiently large tiles in the free dimension)",
    f"{PERF_GUIDE}:824, {DMA_GUIDE}:41 (sufficiently large transfers)",
)
_TRANSPOSES = f"{PERF_GUIDE}:690 (overhead of transposes); the same values are computed in every iteration"
_PSUM = "nki.isa: VectorE and ScalarE read PSUM as they read SBUF"

CHANGES = (
    KernelChange(
        "hoist-compute",
        "what does not change inside of a loop is computed once, before it",
        "the same instructions compute the same values again in every iteration",
        _TRANSPOSES,
        "move the transposes, broadcasts and arithmetic that do not depend on the loop's index in front of it, and "
        "keep their results in tiles of their own",
        {"reuse": True, "reuse_out_of": "all", "rearranged": True},
    ),
    KernelChange(
        "hoist-loads",
        "what is loaded again stays in SBUF",
        "blocks of a tensor are loaded more than once though there is room for them",
        _RELOADS,
        "load these blocks before the loops that use them, into tiles that live as long as they are used",
        {"loads": True, "loads_window": UNLIMITED, "loads_share": 100},
    ),
    KernelChange(
        "join-transfers",
        "neighbouring loads and stores of a loop are one transfer, of as many bytes as there are",
        "each transfer has a fixed cost",
        _DMA,
        "load and store [128, n, columns] at once, and index the tile by the iteration",
        {"coalesce": True, "coalesce_bytes": UNLIMITED},
    ),
    KernelChange(
        "join-transfers-16k",
        "neighbouring loads and stores of a loop are one transfer of up to 16 KiB of each partition",
        "each transfer has a fixed cost",
        _DMA,
        "load and store [128, n, columns] of up to 16 KiB a partition at once, and index the tile by the iteration",
        {"coalesce": True, "coalesce_bytes": 16384},
    ),
    KernelChange(
        "split-transfers",
        "each load and store of a loop is a transfer by itself",
        "what waits for the first block of a joined transfer waits for all of it",
        _DMA,
        "write each transfer as one instruction per block, with nisa.dma_copy and no loop that could be joined",
        {"coalesce": False},
    ),
    KernelChange(
        "larger-tiles",
        "iterations that do the same to neighbouring columns are one instruction",
        "each instruction has a fixed cost of some 60 to 100 cycles, however few columns it has",
        _LARGE,
        "give elementwise instructions the whole tile in place of its pieces",
        {"merge": True, "merge_columns": UNLIMITED},
    ),
    KernelChange(
        "read-psum",
        "what is copied from PSUM is read there",
        "a copy takes an engine as long as the instruction that reads it",
        _PSUM,
        "give the PSUM tile to the instructions that read the copy, and leave the copy out",
        {"forward": True, "forward_banks": 7},
    ),
    KernelChange(
        "drop-dead",
        "what is overwritten before anybody reads it is not computed",
        "nobody reads it",
        _FUSION,
        "leave out the first write, such as that of zeros",
        {"dead": True},
    ),
    KernelChange(
        "accumulate-in-psum",
        "products are added to a sum by the PE array",
        "PSUM accumulates for nothing what VectorE adds in a pass of its own",
        "nki.isa.nc_matmul: results accumulate in PSUM",
        "let all products of a sum write to one tile of PSUM, inside of an affine_range",
        {"accumulate": True},
    ),
    KernelChange(
        "double-buffer",
        "a tile that is filled again has a place of its own each time",
        "the next load waits for the last reader of the tile",
        _OVERLAP,
        "allocate the tile inside of the loop, or index one of two by the parity of the iteration",
        {"versions": True},
    ),
)


def open_for(policy: Policy) -> tuple[KernelChange, ...]:
    """Those that differ from what the compiler of a kernel does already."""
    now = policy.values()
    return tuple(c for c in CHANGES if any(now[name] != value for name, value in c.options.items()))

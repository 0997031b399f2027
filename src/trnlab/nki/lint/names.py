# SPDX-License-Identifier: Apache-2.0
"""Names that went away or were renamed, and what to write instead; and the modules that names are looked up in."""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from typing import Any

from trnlab.errors import nearest as nearest_name
from trnlab.nki.imports import MODULES

_GUIDE = "NKI migration guide (nki/migration/index.rst)"
_V2, _V3, _V4, _V6 = (f"{_GUIDE}, {v}" for v in ("0.2.0", "0.3.0", "0.4.0", "0.6.0"))

# Names of the new dialect that are gone: what to do, and who says so.
REMOVED = {
    "nki.language.arange": ("index with slices, t[a:b], or with .ap(pattern)", _V2),
    "nki.language.mgrid": ("index with slices, t[a:b], or with .ap(pattern)", _V2),
    "nki.language.par_dim": ("put the partition first: (128, ...); use a list of tiles for blocks", _V2),
    "nki.language.loop_reduce": ("add into a tile with nisa.tensor_tensor", _V2),
    "nki.language.atomic_rmw": ("use nisa.dma_compute", _V3),
    "nki.language.spmd_dim": ("launch with kernel[2](...), one program per core", _V2),
    "nki.language.nc": ("launch with kernel[2](...), one program per core", _V2),
    "nki.isa.tensor_copy_dynamic_src": ("use nisa.tensor_copy with .ap(scalar_offset=...) as src", _V4),
    "nki.isa.tensor_copy_dynamic_dst": ("use nisa.tensor_copy with .ap(scalar_offset=...) as dst", _V4),
    "nki.isa.gather_flattened": ("use nisa.nc_n_gather", _V2),
    "nki.baremetal": ("call the @nki.jit kernel on NumPy arrays", _V3),
    "nki.benchmark": ("call the @nki.jit kernel, and profile it with the tools", _V3),
    "nki.profile": ("call the @nki.jit kernel, and profile it with the tools", _V3),
    "nki.simulate_kernel": ("use nki.simulate(kernel)(...)", _V3),
    "nki.trace": ("leave the decorator out; kernels call plain functions", _V2),
    "nki.compiler": ("give tiles an address: nl.ndarray(..., address=(partition, byte))", _V2),
}

# Names that still work and are to go: what to do, and who says so.
DEPRECATED = {
    "nki.language.affine_range": ("use range", "nki.language.affine_range"),
    "nki.language.sequential_range": ("use range", "nki.language.sequential_range"),
    "nki.language.static_range": ("use range", "nki.language.static_range"),
    "nki.language.dynamic_range": ("use nl.fori_loop(lower, upper, body)", _V6),
    "nki.language.tile_size.total_available_sbuf_size": ("use nl.tile_size.sbuf_fmax_bytes", _V4),
    "nki.isa.tensor_engine": ("use nisa.engine.tensor", "nki.isa"),
    "nki.isa.vector_engine": ("use nisa.engine.vector", "nki.isa"),
    "nki.isa.scalar_engine": ("use nisa.engine.scalar", "nki.isa"),
    "nki.isa.gpsimd_engine": ("use nisa.engine.gpsimd", "nki.isa"),
    "nki.isa.unknown_engine": ("use nisa.engine.unknown", "nki.isa"),
}

# Names that are taken here and that no release documents: what to do, and who says so.
UNDOCUMENTED = {"nki.language.cast": ("use nl.copy(x, dtype=...)", "the names of nki.language")}

# Keywords that are gone: (function or "", keyword).
KEYWORDS = {
    ("", "mask"): ("slice to what is there: t[0:min(128, rows - start)]", _V2),
    ("nki.isa.dma_copy", "dst_rmw_op"): ("use nisa.dma_compute(dst, [src, dst], reduce_op=nl.add)", _V3),
    ("nki.isa.dma_copy", "unique_indices"): ("use nisa.dma_compute, which takes it", _V3),
    ("nki.isa.register_move", "imm"): ("register_move(dst, src) with src = nisa.register_alloc(value)", _V3),
    ("nki.isa.sendrecv", "use_gpsimd_dma"): ("dma_engine=nisa.dma_engine.gpsimd_dma", _V3),
}

JIT_OPTIONS = {
    "platform_target": ("set NEURON_PLATFORM_TARGET_OVERRIDE in the environment", _V3),
    "mode": ("leave it out; the kind of the arguments decides, and nki.simulate simulates", _V3),
}


@cache
def module_of(name: str) -> Any:
    """The module of this vendor's name as trnlab has it, or None."""
    real = MODULES.get(name)
    return importlib.import_module(real) if real else None


def split(name: str) -> tuple[str, str]:
    """The longest module that a dotted name begins with, and the rest; two empty strings for none of ours."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        head = ".".join(parts[:cut])
        if head in MODULES:
            return head, ".".join(parts[cut:])
    return "", ""


def known(name: str) -> bool:
    """Whether a dotted name of one of the modules exists (its first part after the module)."""
    head, rest = split(name)
    return not head or name in MODULES or hasattr(module_of(head), rest.split(".")[0])


def nearest(name: str) -> str:
    """A name of the same module that is spelled alike, or ""."""
    head, rest = split(name)
    names = [n for n in dir(module_of(head)) if not n.startswith("_")]
    return nearest_name(rest.split(".")[0], names, cutoff=0.6)


@cache
def signature(name: str) -> inspect.Signature | None:
    """The signature of a function, or None where nothing is known of it."""
    head, rest = split(name)
    target = getattr(module_of(head), rest, None) if head and "." not in rest else None
    if not inspect.isfunction(target):
        return None
    return inspect.signature(target)

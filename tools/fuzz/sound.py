# SPDX-License-Identifier: Apache-2.0
"""Sound files of every kind that is fuzzed, made by trnlab itself or written down here; small, to be read fast."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from trnlab import chips as known_chips
from trnlab import profile
from trnlab.errors import Location
from trnlab.graph.builder import GraphBuilder
from trnlab.graph.ir import Graph
from trnlab.graph.text import to_text
from trnlab.numerics.dtypes import bfloat16, float32
from trnlab.profile import vendor as vendor_files
from trnlab.program import Builder, Routine
from trnlab.program.text import program_text, routine_text
from trnlab.runtime import device
from trnlab.runtime.cache import serialize
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.run import RunRecord
from trnlab.runtime.session import Session, activate
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints

TARGET = "trn1.2xlarge"
_PLACE: list[Path] = []


def place(folder: Path) -> None:
    """Where sound files are made; each process makes its own."""
    _PLACE[:] = [folder]


def _folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_PLACE[-1]))


def graph() -> Graph:
    """A product, a constant, a comparison and a name with markup."""
    b = GraphBuilder("layer")
    x, w = b.input("x", (8, 16), float32), b.input("w", (16, 4), float32)
    b.loc = Location("/home/me/train.py", 12, "forward", "y = x @ w  # </script>")
    dims = {"lhs_contracting_dimensions": (1,), "rhs_contracting_dimensions": (0,)}
    y = b.op("dot_general", x, w, **dims, dtype=float32)
    moved = b.convert(b.add(y, b.constant(np.array([[1, 0.5, -np.inf, 2]], np.float32))), bfloat16)
    b.output(b.compare(moved, "GT", 0.0), "mask")
    b.output(b.multiply(y, 2.0), 'a "name"')
    return b.build()


@cache
def run() -> Path:
    """The folder of a run of two steps."""
    folder = _folder() / "train-1"
    session = Session(known_chips.target(TARGET))
    with activate(session):
        now = session.run = RunRecord(folder, session, Path("/home/me/train.py"), ["--lr", "1e-3"])
        loaded = device.Loaded(device.compile_graph(graph(), session), session)
        now.reference([3.5, 2.5])
        for loss in (3.5, 2.25):
            loaded.run([np.ones((8, 16), np.float32), np.ones((16, 4), np.float32)])
            now.step(loss, tokens=8)
        now.finish("complete")
    profile.render(folder)
    return folder


@cache
def twin(folder: Path) -> Path:
    """A copy of that run, to be damaged."""
    return Path(shutil.copytree(run(), folder / "run"))


@cache
def entries() -> list[bytes]:
    """An entry of the cache."""
    held = Cache(_folder() / "cache", lambda line: None)
    session = Session(known_chips.target(TARGET), cache=held)
    device.compile_graph(graph(), session)
    found = [held.content(entry.key) or b"" for entry in held.entries()]
    serialize.loads(found[0], "sound")
    return found


@cache
def routine() -> Routine:
    """Memories of all kinds, a pool, strides, and a constant."""
    b = Builder("scale", known_chips.get("trn2"))
    x, y = b.param("x", (256, 64), "float32"), b.param("y", (256, 64), "float32")
    tiles = b.pool((128, 64), "float32", bufs=2, name="t")
    w, acc = b.tile((128, 64), "bfloat16", name="w"), b.psum((64, 64), name="acc")
    b.loc = Location("train.py", 12, "step", "x = 2 * 'x'")
    b.memset(dst=w, value=float("nan"))
    for r in range(0, 256, 128):
        t = tiles.next()
        b.dma_copy(dst=t, src=x[r : r + 128])
        b.tensor_scalar(dst=t, data=t, operand0=2.0, op0="multiply")
        b.dma_copy(dst=y[r : r + 128], src=t, queue=2)
    b.nc_matmul(dst=acc, stationary=w, moving=w, stop=False)
    b.nc_matmul(dst=acc, stationary=w, moving=w[:, ::1], accumulate=True)
    return b.build()


@cache
def programs() -> list[bytes]:
    """A compiled program as text."""
    executable = device.compile_graph(graph(), Session(known_chips.target(TARGET)))
    return [program_text(executable.program).encode()]


@cache
def routines() -> list[bytes]:
    """A routine as text."""
    return [routine_text(routine()).encode()]


@cache
def graphs() -> list[bytes]:
    """A graph as text."""
    return [to_text(graph()).encode()]


@cache
def vendor() -> list[bytes]:
    """What we write in the format of the vendor's profiler, and a few rows with the fields that only theirs have."""
    operands = "src=fp32@0x4000[1,0,0][512,1,1] dst=0x2000000[1,0,0][512,1,1] 128*128 acc_flags=3 fp32_mode=LOW_HIGH"
    row = {"instruction_type": "REGULAR", "evt_wait_time": 1, "hlo_name": "", "operands": operands, "duration": 200}
    rows = [
        {
            **row,
            "id": i,
            "subgroup": unit,
            "opcode": code,
            "timestamp": 100 * i,
            "nki_source_location": "k.py:12",
            "predecessors": [{"id": i - 1, "type": "FLOW_DEPENDENCE"}],
        }
        for i, (unit, code) in enumerate([("Sync", "DMA_DIRECT2D"), ("Tensor", "MATMUL"), ("Scalar", "ACTIVATE")])
    ]
    packet = {"duration": 200, "transfer_size": 2048, "dma_queue": "0", "queue_type": "hardware", "timestamp": 50}
    theirs = {
        "instruction": rows,
        "dma": [packet],
        "ham": [{"timestamp": 100, "duration": 50, "k": 8, "n": 8}],
        "instruction_usage": [{"type": "psum", "timestamp": 100, "usage_avg": 0.1}],
        "summary": [{"total_time": 3e-6, "instance_type": "trn2.3xlarge"}],
        "metadata": [{"last_hw_timestamp": 3000}],
    }
    return [vendor_files.export(profile.load(run())), _json(theirs)]


def _json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def nccom() -> list[bytes]:
    """Reports of nccom-test."""
    rows = [{"size(B)": 1 << n, "time:avg(us)": 10.5 + n, "algorithm": "ring"} for n in range(10, 14)]
    return [_json({"results": rows}), _json(rows)]


def nccom_table() -> list[bytes]:
    """What nccom-test prints."""
    return [b"# a head\nsize(B) count type time:avg(us) algbw(GB/s)\n1024 256 fp32 12.5 0.1\n2048 512 fp32 13 0.2\n"]


_LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}
_VIT = {
    "model_type": "vit",
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "intermediate_size": 8,
    "image_size": 32,
    "patch_size": 4,
}
_MIXTRAL = {**_LLAMA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def configs() -> list[bytes]:
    """Configurations of models in JSON."""
    return [_json(c) for c in (_LLAMA, _VIT, _MIXTRAL)]


def yamls() -> list[bytes]:
    """The same in YAML."""
    return ["".join(f"{k}: {json.dumps(v)}\n" for k, v in c.items()).encode() for c in (_LLAMA, _MIXTRAL)]


def rules() -> list[bytes]:
    """Rules of precision."""
    return [b'history = 8\nscaling = "delayed"\n\n[[rule]]\nmodules = ["h.*.mlp"]\nformat = "fp8"\n']


def chips() -> list[bytes]:
    """A chip."""
    return [known_chips.to_toml(known_chips.get("trn1")).encode()]


def policies() -> list[bytes]:
    """Policies of the hardware's compiler."""
    return [b"scheduled,window=64,reuse=off", b"as-written,window=9"]


def clusters() -> list[bytes]:
    """Clusters."""
    return [b"4xtrn2.48xlarge", b"trn1.32xlarge"]


def amounts() -> list[bytes]:
    """Amounts and ranges."""
    return [b"2T", b"$1.5M", b"30d", b"16..256", b"1_000e3"]


@cache
def checkpoint() -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    root = _folder()
    Checkpoints(open_store(root)).save(7, {"state": b"0123456789"})
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def leases() -> list[bytes]:
    """A lease of another host."""
    about = {"holder": "a:1", "place": "elsewhere", "process": 1, "born": "1", "token": "00", "beats": 3}
    return [_json(about)]


def costs() -> list[bytes]:
    """Costs that a planner keeps."""
    return [_json({"programs": {"a": {"time": 1.5}}, "exchange": {"b": 2.5}})]


def modules() -> list[bytes]:
    """A module of StableHLO."""
    return [
        b"""module @jit_f {
  func.func public @main(%arg0: tensor<4x8xf32>, %arg1: tensor<8x2xf32>) -> (tensor<4x2xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<4x8xf32>, tensor<8x2xf32>) -> tensor<4x2xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %1 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
    %2 = stablehlo.maximum %0, %1 : tensor<4x2xf32>
    %3 = stablehlo.reduce(%2 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<4x2xf32>, tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.reshape %3 : (tensor<4xf32>) -> tensor<4x1xf32>
    %5 = stablehlo.slice %2 [0:4, 0:1] : (tensor<4x2xf32>) -> tensor<4x1xf32>
    %6 = stablehlo.concatenate %4, %5, dim = 1 : (tensor<4x1xf32>, tensor<4x1xf32>) -> tensor<4x2xf32>
    return %6 : tensor<4x2xf32>
  }
}
"""  # noqa: E501
    ]


@cache
def weights() -> list[bytes]:
    """What a checkpoint keeps of a training."""
    import torch

    from trnlab.frontends.torch.saving import state_files

    state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "steps": [1, 2.5, None, "a", True]}
    return [bytes(state_files.to_bytes(state))]

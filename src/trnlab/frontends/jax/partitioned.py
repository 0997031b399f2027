# SPDX-License-Identifier: Apache-2.0
"""What XLA's partitioner makes of a module for several devices: the program of one of them, with its collectives.

Shardings are spread over a program and turned into collectives by XLA, as they are for any chip; here a pass of its
pipeline for the host is written out, and read as StableHLO.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trnlab.errors import UnsupportedOpError
from trnlab.frontends.stablehlo import mlir

_PASS = "spmd-partitioning"
_MESH = re.compile(r"sdy\.mesh @(\S+) = <\[([^\]]*)\](?:, device_ids=\[([^\]]*)\])?>")
_GROUPS = re.compile(
    r"#stablehlo\.replica_group_mesh_axes<mesh = @(\w+), axes = \[((?:#stablehlo\.axis_ref<[^>]*>(?:, )?)*)\]>"
)
_AXIS = re.compile(r'name = "([^"]+)"(?:, sub_axis_info = \((\d+)\)(\d+))?')


def partitioned(compile_on_host: Callable[..., Any]) -> Any:
    """The module of one device. compile_on_host takes XLA's options by name.

    Raises UnsupportedOpError (TRN294) where XLA writes none, or one that cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="trnlab-") as folder:
        compile_on_host(
            xla_dump_to=folder,
            xla_dump_hlo_pass_re=f"{_PASS}.*",
            xla_dump_hlo_as_proto=True,
            xla_dump_hlo_as_text=False,
        )
        found = sorted(Path(folder).glob(f"*.after_{_PASS}.*.hlo.pb"))
        if not found:
            raise UnsupportedOpError(
                "XLA wrote no module for one device of several",
                code="TRN294",
                remedy="write the collectives yourself, with jax.shard_map",
            )
        return _listed(mlir.from_hlo(_module_of(found[-1].read_bytes())))


def _module_of(proto: bytes) -> bytes:
    """The HloModuleProto in an HloProto, whose first field it is."""
    assert proto[:1] == b"\x0a", "field 1, of counted bytes"
    size, place = 0, 1
    while True:
        size |= (proto[place] & 0x7F) << 7 * (place - 1)
        place += 1
        if proto[place - 1] < 0x80:
            return proto[place : place + size]


def _listed(text: str) -> str:
    """The module with groups of devices as lists of numbers, where they are axes of a mesh."""
    meshes = {name: (axes, ids) for name, axes, ids in _MESH.findall(text)}

    def groups(match: re.Match[str]) -> str:
        found = _groups(*meshes[match[1]], _AXIS.findall(match[2]))
        rows = ", ".join(str(row) for row in found.tolist())
        return f"dense<[{rows}]> : tensor<{found.shape[0]}x{found.shape[1]}xi64>"

    return _GROUPS.sub(groups, text)


def _groups(axes: str, ids: str, chosen: list[tuple[str, str, str]]) -> np.ndarray[Any, Any]:
    """The groups, a row each, of the devices of a mesh along axes, or parts of axes: (before)size of one."""
    sizes = {name: int(size) for name, size in re.findall(r'"([^"]+)"=(\d+)', axes)}
    parts: list[tuple[str, int]] = []  # each axis in up to three, the chosen ones by (name, what is before)
    for name, size in sizes.items():
        own = sorted((int(before), int(own)) for n, before, own in chosen if n == name and before)
        done = 1
        for before, part in own:
            parts += [("", before // done), (f"{name}:{before}", part)]
            done = before * part
        parts.append(("" if own else name, size // done))
    names = [f"{n}:{before}" if before else n for n, before, _ in chosen]
    along = [next(i for i, (part, _) in enumerate(parts) if part == name) for name in names]
    count = int(np.prod([size for _, size in parts]))
    devices = np.array([int(n) for n in ids.split(",")]) if ids.strip() else np.arange(count)
    mesh = devices.reshape([size for _, size in parts])
    others = [i for i in range(len(parts)) if i not in along]
    return mesh.transpose(*others, *along).reshape(-1, int(np.prod([parts[i][1] for i in along])))

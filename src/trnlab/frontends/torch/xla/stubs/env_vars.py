# SPDX-License-Identifier: Apache-2.0
"""torch_xla.core.xla_env_vars: names of environment variables, each of which is its own."""

from __future__ import annotations

_OTHERWISE = {
    "HOST_WORLD_SIZE": "XRT_HOST_WORLD_SIZE",
    "HOST_ORDINAL": "XRT_HOST_ORDINAL",
    "LOCAL_WORKER": "XRT_LOCAL_WORKER",
    "SERVICE_ADDRESS": "XRT_MESH_SERVICE_ADDRESS",
    "ORDINAL": "XRT_SHARD_ORDINAL",
}


def __getattr__(name: str) -> str:
    if not name.isupper():
        raise AttributeError(name)
    return _OTHERWISE.get(name, name)

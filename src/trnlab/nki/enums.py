# SPDX-License-Identifier: Apache-2.0
"""The enumerations of nki.isa. Source: nki/api/nki/isa/__init__.py of aws-neuron/aws-neuron-sdk (NKI 0.6.0)."""

from __future__ import annotations

from enum import Enum, IntEnum

from trnlab.isa.base import Engine


class engine(Enum):
    """The engines an instruction may be put on; `unknown` leaves the choice open."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


# deprecated names of the same
tensor_engine, vector_engine, scalar_engine = engine.tensor, engine.vector, engine.scalar
gpsimd_engine, unknown_engine = engine.gpsimd, engine.unknown


class reduce_cmd(Enum):
    """What an instruction does with the accumulation registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who makes the descriptors of a transfer."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What happens to an index outside of the tensor."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """Ways to run the PE array."""

    none = "none"
    double_row = "double_row"


class nc_version(IntEnum):
    """Generations of the NeuronCore."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class dma_engine(Enum):
    """Who moves the data of `sendrecv`."""

    dma = 1
    gpsimd_dma = 2


_ENGINES = {
    engine.tensor: Engine.TENSOR,
    engine.vector: Engine.VECTOR,
    engine.scalar: Engine.SCALAR,
    engine.gpsimd: Engine.GPSIMD,
    engine.sync: Engine.SYNC,
}


def chip_engine(choice: engine | None) -> Engine | None:
    """The chip's engine, or None where the choice is open."""
    if choice is None or choice is unknown_engine:
        return None
    return _ENGINES.get(choice)

# SPDX-License-Identifier: Apache-2.0
"""torch_xla.experimental.tpu and torch_xla._internal.tpu: there is no TPU, which libraries ask."""

from __future__ import annotations

from trnlab.frontends.torch.xla.names import refusing


def num_available_chips() -> int:
    """None."""
    return 0


num_available_devices = num_local_processes = num_logical_cores_per_chip = num_available_chips


def version() -> int:
    """Raises OSError, as where no TPU answers."""
    raise OSError("no TPU is there: the device is a simulated NeuronCore")


__getattr__ = refusing("torch_xla.experimental.tpu", "there is no TPU", ("get_tpu_env",))

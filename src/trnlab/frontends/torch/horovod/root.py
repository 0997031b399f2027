# SPDX-License-Identifier: Apache-2.0
"""`horovod`, the package around `horovod.torch`. Imports bind that name here, which must mean nothing else."""

__version__ = "0+trnlab"


def run(*args: object, **kwargs: object) -> None:
    """Raises RuntimeError: ranks are started by another launcher."""
    raise RuntimeError("start the script with trnlab run --ranks N, or torchrun")

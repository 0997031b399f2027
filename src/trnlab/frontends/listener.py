# SPDX-License-Identifier: Apache-2.0
"""A finder that waits for the first import of one of the vendors' packages."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of `typing`, which would be most of what a start costs
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

ROOTS = ("horovod", "libneuronxla", "neuron_dtypes", "neuronxcc", "nki", "torch_neuronx", "torch_xla")


class VendorImportListener:
    """Finds nothing by itself; `arrive` puts those in place that do."""

    def __init__(self, arrive: Callable[[], None]) -> None:
        self.arrive = arrive

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """What is found once trnlab's are there; packages that are installed win, as under `trnlab run`."""
        if name.partition(".")[0] not in ROOTS:
            return None
        leave()  # before anything is imported that looks for them itself
        self.arrive()
        found = (finder.find_spec(name, path, target) for finder in list(sys.meta_path))
        return next((spec for spec in found if spec is not None), None)


def leave() -> None:
    """Wait no longer: the imports find what they shall."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, VendorImportListener)]

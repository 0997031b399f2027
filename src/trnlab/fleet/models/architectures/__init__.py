# SPDX-License-Identifier: Apache-2.0
"""Architectures, one file each: from the fields of a configuration to a model. `READERS` has them by model_type.

A file that is put here is found by itself. What its blocks compute that others do not, it says in a `forward` of its
own (`transformer.Block`); parameters, operations, plans, programs of generation and costs on GPUs follow from that.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Model

Reader = Callable[[ConfigurationFields], Model]
READERS: dict[str, Reader] = {}


def architecture(*kinds: str) -> Callable[[Reader], Reader]:
    """Register the function that reads configurations of these model_types. A type that is read twice is a bug."""

    def register(reader: Reader) -> Reader:
        for kind in kinds:
            assert kind not in READERS, f"{kind}: read by {READERS[kind].__module__} already"
            READERS[kind] = reader
        return reader

    return register


for _module in sorted(module.name for module in pkgutil.iter_modules(__path__, f"{__name__}.")):
    importlib.import_module(_module)

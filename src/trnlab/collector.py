# SPDX-License-Identifier: Apache-2.0
"""Python's search for cycles of objects that nobody else knows."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Within the block, Python does not look for cycles among its objects, again and again through all there are.

    Recording makes many objects and hardly any cycles: reference counts free what is not needed any more.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()

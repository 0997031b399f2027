# SPDX-License-Identifier: Apache-2.0
"""How many operators of the framework the host computed, in two buckets: setup and training."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class HostOps:
    """Operators by name, before (`setup`) and after (`training`) the first compiled program started.

    PyTorch's autograd and data loaders call operators on threads of their own, so counting takes a lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything, as if no program had run."""
        with self._lock:
            self.setup: Counter[str] = Counter()
            self.training: Counter[str] = Counter()
            self._now = self.setup

    def add(self, name: str) -> None:
        """Operator `name` ran."""
        with self._lock:
            self._now[name] += 1

    def program_started(self) -> None:
        """From here on what the host computes is training: work that is missing from the programs."""
        self._now = self.training

    def by_name(self) -> dict[str, dict[str, int]]:
        """Counts by operator, most frequent first, of each bucket."""
        with self._lock:
            return {"setup": dict(self.setup.most_common()), "training": dict(self.training.most_common())}

    def totals(self) -> dict[str, int]:
        """How many operators each bucket holds."""
        with self._lock:
            return {"setup": self.setup.total(), "training": self.training.total()}


_in_use = [HostOps()]  # the first is of the process, for when it has no session


def current() -> HostOps:
    """Where operators that run on the host are counted now."""
    return _in_use[-1]


@contextmanager
def use(counts: HostOps) -> Iterator[None]:
    """Count in `counts` within the block."""
    _in_use.append(counts)
    try:
        yield
    finally:
        _in_use.remove(counts)

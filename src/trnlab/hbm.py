# SPDX-License-Identifier: Apache-2.0
"""HBM in use: what lies there whether or not a program runs, and the most that programs took with it.

A front end whose tensors stay on the device says how many bytes of them there are; a program adds what is its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable


class Resident:
    """The tensors in a core's HBM, of all programs of this process.

    counted: bytes of all tensors of the front end, by what it calls at that moment; None where nobody says.
    """

    def __init__(self) -> None:
        self.counted: Callable[[], int] | None = None
        self._peak = 0
        self._held = 0

    @property
    def bytes(self) -> int:
        """Bytes in use now, between programs."""
        return (self.counted() if self.counted is not None else 0) + self._held

    def hold(self, owner: object, count: int) -> None:
        """So many bytes lie on the device as long as `owner`, a program, is there."""
        self._held += count
        weakref.finalize(owner, self._release, count)

    def _release(self, count: int) -> None:
        self._held -= count

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were in use when a program ran or somebody asked, since `reset`."""
        self._peak = max(self._peak, self.bytes)
        return self._peak

    def reset(self) -> None:
        """The peak is what is in use now."""
        self._peak = self.bytes

    def other_bytes(self, own: int, inputs: int) -> int:
        """Bytes that lie beside the `own` of a program that is about to run, of which its inputs are so many; both
        count in the peak."""
        found = max(self.bytes - inputs, 0)
        self._peak = max(self._peak, own + found)
        return found


HBM = Resident()

# SPDX-License-Identifier: Apache-2.0
"""nki.experimental: what the reference of nki.isa names there, and nki.language has by now."""

from trnlab.nki.language import fori_loop, while_loop

__all__ = ["fori_loop", "while_loop"]

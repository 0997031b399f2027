# SPDX-License-Identifier: Apache-2.0
"""From a graph to a program: clean up, choose formats, fuse, lower each group to a routine, place tensors in HBM."""

from trnlab.compiler.known import routines_of
from trnlab.compiler.pipeline import PASSES, compile

__all__ = ["PASSES", "compile", "routines_of"]

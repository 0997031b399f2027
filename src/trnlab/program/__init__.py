# SPDX-License-Identifier: Apache-2.0
"""Instruction streams, buffers and access patterns, and the builder that makes them."""

from trnlab.program.access import AP, Buffer, hbm_view, whole
from trnlab.program.builder import Builder
from trnlab.program.pool import Pool
from trnlab.program.routine import Call, Program, Routine, Tensor

__all__ = ["AP", "Buffer", "Builder", "Call", "Pool", "Program", "Routine", "Tensor", "hbm_view", "whole"]

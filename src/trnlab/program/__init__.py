# SPDX-License-Identifier: Apache-2.0
"""Instruction streams, buffers and access patterns, and the builder that makes them."""

from trnlab.program.access import AP, Buffer, hbm_view, whole
from trnlab.program.builder import Builder
from trnlab.program.pool import TilePool
from trnlab.program.routine import Call, Program, ProgramTensor, Routine

__all__ = ["AP", "Buffer", "Builder", "Call", "Program", "ProgramTensor", "Routine", "TilePool", "hbm_view", "whole"]

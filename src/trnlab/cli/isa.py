# SPDX-License-Identifier: Apache-2.0
"""`trnlab isa`."""

from __future__ import annotations

import argparse

from trnlab.errors import UsageError
from trnlab.isa import REGISTRY
from trnlab.isa.documentation import page, signature


def main(args: argparse.Namespace) -> int:
    """Show the page of one instruction, or all signatures by opcode."""
    if args.name is None:
        instructions = sorted(REGISTRY.values(), key=lambda instr: instr.opcode)
        print("\n".join(f"{instr.opcode:3}  {signature(instr)}" for instr in instructions))
        return 0
    if args.name not in REGISTRY:
        raise UsageError(
            f"unknown instruction {args.name!r}", code="TRN125", limit=", ".join(sorted(REGISTRY)),
            remedy="choose one of these",
        )  # fmt: skip
    print(page(REGISTRY[args.name]), end="")
    return 0

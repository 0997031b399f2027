# SPDX-License-Identifier: Apache-2.0
"""`trnlab isa`."""

from __future__ import annotations

import argparse
import inspect

from trnlab.errors import UsageError
from trnlab.isa import REGISTRY
from trnlab.isa.documentation import page, signature
from trnlab.nki import examples, isa


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab isa`."""
    command.add_argument("name", metavar="NAME", nargs="?", help="an instruction: operands, limits, meaning")


def main(args: argparse.Namespace) -> int:
    """Show the page of one instruction, or all signatures by opcode."""
    if args.name is not None:
        print(text_of(args.name))
        return 0
    print("\n".join(f"{opcode:>3}  {signature}" for opcode, _, signature in listed()))
    return 0


def listed() -> list[tuple[str, str, str]]:
    """All instructions by opcode, then functions that ask: opcode, name, signature."""
    instructions = sorted(REGISTRY.values(), key=lambda instr: instr.opcode)
    found = [(str(instr.opcode), instr.name, signature(instr)) for instr in instructions]
    return [*found, *(("-", name, f"{name}()") for name in examples.QUERIES)]


def text_of(name: str) -> str:
    """The page of an instruction. Raises UsageError (TRN125) where there is none of this name."""
    if name in examples.QUERIES:
        return _query(name)
    if name in REGISTRY:
        return _page(name)
    known = ", ".join(sorted({*REGISTRY, *examples.QUERIES}))
    raise UsageError(f"unknown instruction {name!r}", code="TRN125", limit=known, remedy="choose one of these")


def _page(name: str) -> str:
    """The page that the instruction makes of itself, with its call in NKI and the predicted time of its example."""
    instr = REGISTRY[name]
    body, last = page(instr).rstrip("\n").rsplit("\n\n", 1)
    title, rest = body.split("\n\n", 1)
    call = examples.signature(name)
    lines = [f"- {line}" for line in examples.times(instr)]
    timed = ["\n".join(["## Time of the example, predicted", "", *lines])] if lines else []
    return "\n\n".join([title, *([f"    {call}"] if call else []), rest, *timed, last])


def _query(name: str) -> str:
    """A function of nki.isa that asks and does nothing."""
    says = inspect.cleandoc(getattr(isa, name).__doc__ or "")
    return f"# {name}\n\n    nki.isa.{name}()\n\n{says}\n\n## Example\n\n    {examples.QUERIES[name]}"

# SPDX-License-Identifier: Apache-2.0
"""`trnlab stacks`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from trnlab import documents, stacks
from trnlab.documents import Document, Note, Section, Table


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab stacks`."""
    add = command.add_argument
    add(
        "stack",
        metavar="STACK",
        nargs="?",
        default=stacks.VENDOR,
        help="vendor, or vendor,release=2.18,library=axlearn,...; default: vendor",
    )
    add("--json", action="store_true", help="everything as JSON, see docs/stacks.md")


def main(args: argparse.Namespace) -> int:
    """Print every choice: what it is of, and its values in both stacks. Raises UsageError (TRN587)."""
    said = document(stacks.parse(args.stack))
    print(said.json() if args.json else documents.text(said))
    return 0


def document(stack: stacks.Stack) -> Document:
    """The choices of a stack beside ours, and what each of the vendor's rests on."""
    known = stacks.choices()
    rows = [(c.name, str(c.ours), str(getattr(stack, c.name)), *_basis(stack, c)) for c in known]
    head = ("choice", "ours", stack.text, "basis", "source")
    meant = [Note(f"{c.name}: {c.about}. {c.values}") for c in known]
    dated = [
        (c.name, each.release, str(each.value), each.basis, each.source)
        for c in known
        for each in (*c.vendor, *c.libraries.values())
    ]
    return Document(
        "stacks",
        [
            Section(f"ours, and {stack.title}", [Table(rows, head)]),
            Section("what is chosen", meant),
            Section(
                "the vendor's, from each release on",
                [Table(dated, ("choice", "release", "value", "basis", "source"))],
            ),
        ],
        record=lambda: {"stack": asdict(stack), "choices": [_recorded(stack, c) for c in known]},
    )


def _basis(stack: stacks.Stack, choice: stacks.Choice) -> tuple[str, str]:
    known = stack.basis(choice)
    return (known.basis, known.source) if known.value == getattr(stack, choice.name) else ("asked", "")


def _recorded(stack: stacks.Stack, choice: stacks.Choice) -> dict[str, object]:
    vendor = [asdict(each) for each in choice.vendor]
    libraries = {name: asdict(each) for name, each in choice.libraries.items()}
    return {
        "name": choice.name,
        "about": choice.about,
        "ours": choice.ours,
        "value": getattr(stack, choice.name),
        "vendor": vendor,
        "libraries": libraries,
        "alternatives": list(choice.alternatives),
    }

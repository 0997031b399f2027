# SPDX-License-Identifier: Apache-2.0
"""Arguments of the command that shows networks and tests collectives."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli.arguments.common import setting


def fabric(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab fabric`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="chips, links, rings, rails")
    test = actions.add_parser("test", help="the vendor's nccom-test, predicted: same flags, table, JSON")
    health = actions.add_parser("health", help="what a real nccom-test wrote, against the prediction")
    _health(health)
    for action in (show, test, health):
        action.add_argument("--target", required=True, metavar="NAME", help="trn2.48xlarge, or 4xtrn1.32xlarge")
        setting(action, "fault")
        action.add_argument("--runtime", default="2.32", metavar="NAME", help="2.32 or older; default: 2.32")
    for action in (test, health):
        _collective(action)
    add = test.add_argument
    add("operation", metavar="OPERATION", help="allr, allg, redsct, alltoall, sendrecv or permute")
    add("-b", "--minbytes", metavar="BYTES", help="default: 32M, or as many as --maxbytes")
    add("-e", "--maxbytes", metavar="BYTES", default="32M", help="default: 32M")
    add("-i", "--stepbytes", metavar="BYTES", help="from size to size; default: a tenth of the way")
    add("-f", "--stepfactor", type=int, metavar="FACTOR", help="from size to size")
    add("-c", "--check", nargs="?", const="random", choices=("random", "all_ones"), help="run it on data, too")
    add("--seed", type=int, default=0, help="of the data; default: 0")
    add("--show-algorithm", action="store_true", help="a column with the algorithm")
    add("--show-input-output-size", action="store_true", help="two columns with the bytes in and out")
    add("--report-to-json-file", type=Path, metavar="FILE", help="write the table as JSON")


def _collective(action: argparse.ArgumentParser) -> None:
    """Which ranks take part, and with what."""
    add = action.add_argument
    add("-r", "--nworkers", type=int, metavar="RANKS", help="default: all that the target holds")
    add("-d", "--datatype", default="uint8", metavar="TYPE", help="such as fp32 or bf16; default: uint8")
    add("--data-parallel-dimension", type=int, metavar="SIZE", help="groups of this size, as far apart as possible")
    add("--custom-replica-groups", type=Path, metavar="FILE", help="groups of ranks, as JSON")
    add("--custom-src-target-pairs", type=Path, metavar="FILE", help="pairs of permute, as JSON")


def _health(action: argparse.ArgumentParser) -> None:
    add = action.add_argument
    add("file", metavar="REAL", type=Path, help="JSON of --report-to-json-file, or the table that was printed")
    add("--operation", default="allr", metavar="NAME", help="which collective it was; default: allr")
    add("--baseline", type=Path, metavar="FILE", help="the same test when all was well")
    add("--tolerance", type=float, metavar="SHARE", help="how far a size may be off; default: 0.1")
    add("--json", action="store_true", help="for programs")

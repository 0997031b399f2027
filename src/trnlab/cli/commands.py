# SPDX-License-Identifier: Apache-2.0
"""The commands of `trnlab`, in the groups that its help shows, and the parser that they make."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import trnlab
from trnlab.cli.arguments import fleet, network, results, scripts, stores


@dataclass(frozen=True)
class Command:
    """One command: its name, what it does in a few plain words, and what adds its arguments to a parser.

    The module of its name in `folder` has its `main`, and is imported when the command is chosen.
    """

    name: str
    about: str
    arguments: Callable[[argparse.ArgumentParser], Any]
    folder: str = "trnlab.cli"

    @property
    def module(self) -> str:
        """The module that has its `main`."""
        return f"{self.folder}.{self.name.replace('-', '_')}"


PLANNING, STORES = "trnlab.cli.planning", "trnlab.cli.stores"
GROUPS: dict[str, tuple[Command, ...]] = {
    "Run": (
        Command("run", "run a training script or kernels on a simulated Trainium", scripts.run),
        Command("compile", "compile all programs of a script ahead of time, into the cache", scripts.compile),
    ),
    "Look at a run": (
        Command("profile", "show a run again, or a measured profile: summary, report, trace", results.profile),
        Command("compare", "compare two runs: what got faster, slower, appeared or vanished", results.compare),
        Command("sensitivity", "show which assumed figures of the hardware decide a run's time", results.folder),
        Command("monitor", "show what runs on simulated devices now, as neuron-monitor does", results.monitor),
    ),
    "Port a script": (
        Command("check", "find what a training script does that the chip cannot", scripts.check),
        Command("estimate", "predict time, memory and cost of a training step", partial(scripts.check, page=False)),
        Command("verify", "compare a script's first steps on the chip and on the host", scripts.verify),
        Command("precision", "run a script in several precisions, and say which to take", scripts.study),
    ),
    "Plan a cluster": (
        Command("plan", "choose cluster and layout for training a model: days and dollars", fleet.plan, PLANNING),
        Command("serve-plan", "choose instances that serve a model at a rate and latency", fleet.serve, PLANNING),
        Command("bakeoff", "compare a training on two platforms: time, dollars, energy", fleet.bakeoff, PLANNING),
        Command("goodput", "show what failures leave of a large job's time", fleet.goodput, PLANNING),
        Command("fabric", "show a cluster's network, and time collectives on it", network.fabric, PLANNING),
        Command("chips", "list chips and instances with their figures and sources", results.chips),
    ),
    "Operate": (
        Command("doctor", "check whether this host is fit for a job", scripts.doctor),
        Command("cache", "list, verify, prune or copy compiled programs", stores.cache, STORES),
        Command("checkpoint", "list, verify, compare or convert checkpoints", stores.checkpoint, STORES),
        Command("data", "show, verify or index a data set", stores.data, STORES),
    ),
    "Write kernels": (
        Command("isa", "show the instructions of a NeuronCore", results.isa),
        Command("lint", "find what the vendor's compiler would refuse in kernels", results.lint),
        Command("graph", "show a module of StableHLO as a graph, and check it", results.graph),
        Command("program", "show the instructions that a graph becomes, and check them", results.program),
        Command("passes", "show what the compiler makes of kernels, and what each pass gains", results.passes),
        Command("validate", "compare predicted times with measurements of real chips", results.validate),
    ),
}
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}


class _Top(argparse.ArgumentParser):
    """The parser of `trnlab` itself, whose help shows the commands in groups."""

    def format_help(self) -> str:
        """The text of `trnlab --help`: usage, commands by group, options."""
        width = max(len(name) for name in COMMANDS)
        lines = ["A whole AWS Trainium in software.", "", "Usage: trnlab COMMAND [ARGUMENTS]"]
        for title, commands in GROUPS.items():
            lines += ["", f"{title}:", *(f"  {c.name:{width}}  {c.about}" for c in commands)]
        options = (("-h, --help", "show this help"), ("--version", "show the version"))
        lines += ["", "Options:", *(f"  {option:{width}}  {about}" for option, about in options)]
        return "\n".join([*lines, "", "`trnlab COMMAND --help` shows what a command takes.", ""])


def parser() -> argparse.ArgumentParser:
    """The parser of all commands and their arguments."""
    top = _Top(prog="trnlab")
    top.add_argument("--version", action="version", version=f"trnlab {trnlab.__version__}")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )
    for command in COMMANDS.values():
        about = f"{command.about[0].upper()}{command.about[1:]}."
        command.arguments(commands.add_parser(command.name, description=about))
    return top


def unknown(argv: Sequence[str]) -> str | None:
    """What to say where the first word is no command, with the nearest; None for commands and options."""
    if not argv or argv[0].startswith("-") or argv[0] in COMMANDS:
        return None
    near = difflib.get_close_matches(argv[0], COMMANDS, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"there is no command {argv[0]!r}{hint}\n`trnlab --help` lists the commands."

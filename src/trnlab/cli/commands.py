# SPDX-License-Identifier: Apache-2.0
"""The commands of `trnlab`, in the groups that its help shows, and the parser that they make."""

from __future__ import annotations

import argparse
import difflib
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Command:
    """One command. The module of its name has its arguments and its `main`; it is imported only when it is chosen."""

    name: str
    about: str  # what it does, in a few plain words: a line of `trnlab --help`
    package: str = "trnlab.cli"  # that has the module

    @property
    def module(self) -> str:
        """The name of its module."""
        return f"{self.package}.{self.name.replace('-', '_')}"

    def load(self) -> ModuleType:
        """Its module: `arguments(parser)` adds what it takes, `main(args)` runs it and returns the exit status."""
        return importlib.import_module(self.module)


PLANNING, STORES, KERNELS, WEB = "trnlab.cli.planning", "trnlab.cli.stores", "trnlab.cli.kernels", "trnlab.cli.web"
GROUPS: dict[str, tuple[Command, ...]] = {
    "Run": (
        Command("run", "run a training script or kernels on a simulated Trainium"),
        Command("compile", "compile all programs of a script ahead of time, into the cache"),
    ),
    "Look at a run": (
        Command("ui", "serve one page for runs, plans, kernels, caches and chips", WEB),
        Command("profile", "show a run again, or a measured profile: summary, report, trace"),
        Command("compare", "compare two runs: what got faster, slower, appeared or vanished"),
        Command("sensitivity", "show which assumed figures of the hardware decide a run's time"),
        Command("monitor", "show what runs on simulated devices now, as neuron-monitor does"),
    ),
    "Port a script": (
        Command("check", "find what a training script does that the chip cannot"),
        Command("estimate", "predict time, memory and cost of a training step"),
        Command("verify", "compare a script's first steps on the chip and on the host"),
        Command("precision", "run a script in several precisions, and say which to take"),
    ),
    "Plan a cluster": (
        Command("plan", "choose cluster and layout for training a model: days and dollars", PLANNING),
        Command("serve-plan", "choose instances that serve a model at a rate and latency", PLANNING),
        Command("bakeoff", "compare a training on two platforms: time, dollars, energy", PLANNING),
        Command("goodput", "show what failures leave of a large job's time", PLANNING),
        Command("fabric", "show a cluster's network, and time collectives on it", PLANNING),
        Command("stacks", "show what our compiler and the vendor's make of a model", PLANNING),
        Command("chips", "list chips and instances with their figures and sources"),
    ),
    "Operate": (
        Command("completion", "print what completes these commands in bash, zsh or fish"),
        Command("doctor", "check whether this host is fit for a job"),
        Command("cache", "list, verify, prune or copy compiled programs", STORES),
        Command("checkpoint", "list, verify, compare or convert checkpoints", STORES),
        Command("data", "show, verify or index a data set", STORES),
    ),
    "Write kernels": (
        Command("bench", "judge kernels against a reference: right, how fast, and why", KERNELS),
        Command("ideas", "change a kernel where its numbers stay: what each change gains", KERNELS),
        Command("tune", "search a kernel's parameters for its fastest right form", KERNELS),
        Command("lint", "find what the vendor's compiler would refuse in kernels", KERNELS),
        Command("passes", "show what the compiler makes of kernels, and what each pass gains", KERNELS),
        Command("isa", "show the instructions of a NeuronCore", KERNELS),
        Command("mcp", "serve the laboratory of kernels to programs that write them", KERNELS),
        Command("graph", "show a module of StableHLO as a graph, and check it"),
        Command("program", "show the instructions that a graph becomes, and check them"),
        Command("validate", "compare predicted times with measurements of real chips"),
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
        options = (("-h, --help", "show this help"), ("--version", "show the version, and of a clone its commit"))
        lines += ["", "Options:", *(f"  {option:{width}}  {about}" for option, about in options)]
        return "\n".join([*lines, "", "`trnlab COMMAND --help` shows what a command takes.", ""])


class _ShowVersion(argparse.Action):
    """--version, for which git is asked: what does so is imported only then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from trnlab.cli.version import version

        print(version())
        parser.exit()


def parser(*chosen: str) -> argparse.ArgumentParser:
    """The parser of `trnlab`. chosen: the commands whose arguments it knows; no other module is imported."""
    top = _Top(prog="trnlab")
    top.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=argparse.ArgumentParser
    )
    for command in COMMANDS.values():
        about = f"{command.about[0].upper()}{command.about[1:]}."
        of_command = commands.add_parser(command.name, description=about, help=command.about)
        if command.name in chosen:
            from trnlab.cli.options import name_numbers  # with the settings, which the help of `trnlab` does not need

            command.load().arguments(of_command)
            name_numbers(of_command)
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """What words say, of which the first is the command; without any it is --help."""
    return parser(*[word for word in words[:1] if word in COMMANDS]).parse_args(words or ["--help"])


def unknown(argv: Sequence[str]) -> str | None:
    """What to say where the first word is no command, with the nearest; None for commands and options."""
    if not argv or argv[0].startswith("-") or argv[0] in COMMANDS:
        return None
    near = difflib.get_close_matches(argv[0], COMMANDS, 1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"there is no command {argv[0]!r}{hint}\n`trnlab --help` lists the commands."

# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments, and nothing else. Each command's module is imported when it is chosen."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

import trnlab
from trnlab.cli.arguments import fleet, network, results, scripts, stores
from trnlab.errors import TrnlabError
from trnlab.files import why
from trnlab.runtime.notices import say, tell

USAGE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 the script or check failed, 2 an error that is told."""
    _open_closed_outputs()
    if isinstance(sys.stdout, io.TextIOWrapper):  # an output in a narrow encoding shows what it can of bars and names
        sys.stdout.reconfigure(errors="replace")
    try:
        args = parser().parse_args(argv)
        status: int = importlib.import_module(f"trnlab.cli.{args.command.replace('-', '_')}").main(args)
        sys.stdout.flush()
    except TrnlabError as error:
        tell(error)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except OSError as error:
        say(f"TRN100: {why(error)}" + (f" ({error.filename})" if error.filename else ""))
    else:
        return status
    return USAGE


def _open_closed_outputs() -> None:
    """Where the shell closed an output, write it nowhere: else Python has none, and the next file that is opened gets
    its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(prog="trnlab", description="A whole AWS Trainium in software.")
    top.add_argument("--version", action="version", version=f"trnlab {trnlab.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    scripts.run(commands.add_parser("run", help="run a script, of training or of kernels, on a simulated Trainium"))
    results.monitor(
        commands.add_parser("monitor", help="what runs on simulated devices now, under the vendor's names")
    )
    scripts.doctor(
        commands.add_parser("doctor", help="whether this host is fit for a job: a page before it is paid for")
    )
    results.chips(commands.add_parser("chips", help="the chips and instances that are known, with their figures"))
    stores.cache(commands.add_parser("cache", help="look into the compile cache, prune it, copy it"))
    stores.checkpoint(commands.add_parser("checkpoint", help="the checkpoints of a run: list, verify, compare"))
    stores.data(commands.add_parser("data", help="the data set of a training: show, verify, index"))
    results.profile(
        commands.add_parser("profile", help="open a run again, or a measured one: summary, report, trace")
    )
    results.compare(commands.add_parser("compare", help="two runs: what got faster, slower, appeared, vanished"))
    results.isa(commands.add_parser("isa", help="the instructions of a NeuronCore"))
    results.graph(commands.add_parser("graph", help="a module of StableHLO as a graph: read, checked, shown"))
    results.program(
        commands.add_parser("program", help="the instructions that a graph becomes: made, read back, checked")
    )
    results.passes(
        commands.add_parser("passes", help="what the compiler is taken to make of kernels, and what that gains")
    )
    results.folder(commands.add_parser("sensitivity", help="which assumptions a run's time leans on"))
    results.lint(
        commands.add_parser("lint", help="what the hardware's compiler would refuse in kernels; nothing is run")
    )
    scripts.verify(
        commands.add_parser("verify", help="a script's first steps on the chip and on the host: what differs first")
    )
    scripts.study(
        commands.add_parser("precision", help="a script in several precisions, side by side, and which to take")
    )
    scripts.check(
        commands.add_parser("check", help="what is in a training script's way on the chip; nothing is computed")
    )
    scripts.check(
        commands.add_parser("estimate", help="time, memory and cost of a training step; nothing is computed"),
        page=False,
    )
    scripts.compile(
        commands.add_parser("compile", help="every program of a script's steps, ahead of time, into the cache")
    )
    network.fabric(commands.add_parser("fabric", help="the network of a cluster, and collectives on it"))
    fleet.goodput(
        commands.add_parser("goodput", help="what failures leave of a job of many chips, and what keeps it up")
    )
    fleet.plan(commands.add_parser("plan", help="from a model to a bill: clusters and layouts, days and dollars"))
    fleet.bakeoff(
        commands.add_parser("bakeoff", help="the same training on two sides: time, dollars, energy, with bands")
    )
    fleet.serve(
        commands.add_parser("serve-plan", help="which instances serve a model at a rate and in time, for how much")
    )
    results.validate(commands.add_parser("validate", help="the model of time against measurements of real chips"))
    return top


if __name__ == "__main__":
    sys.exit(main())

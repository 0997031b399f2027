# SPDX-License-Identifier: Apache-2.0
"""The command line: arguments, and nothing else. Each command's module is imported when it is chosen."""

from __future__ import annotations

import argparse
import importlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import trnlab
from trnlab.errors import TrnlabError
from trnlab.files import why
from trnlab.precision import MODES
from trnlab.runtime.notices import say, tell

USAGE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 the script or check failed, 2 an error that is told."""
    args = parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # an output in a narrow encoding shows what it can of bars and names
        sys.stdout.reconfigure(errors="replace")
    try:
        status: int = importlib.import_module(f"trnlab.cli.{args.command}").main(args)
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


def parser() -> argparse.ArgumentParser:
    """All commands and their arguments."""
    top = argparse.ArgumentParser(prog="trnlab", description="A whole AWS Trainium in software.")
    top.add_argument("--version", action="version", version=f"trnlab {trnlab.__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _run(commands.add_parser("run", help="run a script, of training or of kernels, on a simulated Trainium"))
    _chips(commands.add_parser("chips", help="the chips and instances that are known, with their figures"))
    _cache(commands.add_parser("cache", help="look into the compile cache"))
    _profile(commands.add_parser("profile", help="open a run again, or a measured one: summary, report, trace"))
    _compare(commands.add_parser("compare", help="two runs: what got faster, slower, appeared, vanished"))
    _isa(commands.add_parser("isa", help="the instructions of a NeuronCore"))
    _passes(commands.add_parser("passes", help="what the compiler is taken to make of kernels, and what that gains"))
    _folder(commands.add_parser("sensitivity", help="which assumptions a run's time leans on"))
    _lint(commands.add_parser("lint", help="what the hardware's compiler would refuse in kernels; nothing is run"))
    _verify(
        commands.add_parser("verify", help="a script's first steps on the chip and on the host: what differs first")
    )
    _study(commands.add_parser("precision", help="a script in several precisions, side by side, and which to take"))
    _check(commands.add_parser("check", help="what is in a training script's way on the chip; nothing is computed"))
    _check(
        commands.add_parser("estimate", help="time, memory and cost of a training step; nothing is computed"),
        page=False,
    )
    _fabric(commands.add_parser("fabric", help="the network of a cluster, and collectives on it"))
    _validate(commands.add_parser("validate", help="the model of time against measurements of real chips"))
    return top


def _run(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", metavar="NAME", help="what to simulate, e.g. trn1.2xlarge or trn2; default: $TRNLAB_TARGET")
    _precision(command)
    add("--out", metavar="DIR", type=Path, help="folder of the run; default: runs/<script>-<n>")
    add(
        "--stochastic-rounding",
        action=argparse.BooleanOptionalAction,
        help="round to narrower floats stochastically, reproducibly; default: with bf16-all only",
    )
    add("--seed", type=int, default=0, help="of stochastic rounding and the device's random numbers; default: 0")
    add("--set", metavar="FIGURE=VALUE", action="append", help="what if, e.g. chip.dma.engine_bandwidth=30GBps")
    add("--schedule", metavar="NAME", help="what is made of kernels, e.g. as-written or reuse=off: see trnlab passes")
    add(
        "--band",
        action="store_true",
        help="time kernels with the compiler's other likely choices, too (trnlab passes)",
    )
    add("--check", metavar="NAME=LEVEL", action="append", help="a check as error, warn or off, e.g. race=warn")
    add("--check-nan", action="store_true", help="stop at the first instruction that makes a NaN or infinity")
    _cache_folder(command).add_argument("--no-cache", action="store_true", help="compile everything, keep nothing")
    add(
        "--own-nki",
        action="store_true",
        help="`import nki` means trnlab even where the vendor's package is installed",
    )
    add(
        "--inputs",
        metavar="FILE",
        type=Path,
        help="of a module of StableHLO: its arguments, an .npz; default: random",
    )
    add(
        "--emit-stablehlo",
        action="store_true",
        help="write the graphs that are compiled into the run's folder, as StableHLO",
    )
    add("-m", dest="module", action="store_true", help="SCRIPT is a module, as with python -m: -m pytest my_test.py")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def _precision(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--precision", choices=tuple(MODES),
        help="format of matmul operands, or of all that is stored (bf16-all); default: $TRNLAB_PRECISION or bf16",
    )  # fmt: skip
    command.add_argument(
        "--precision-rules", metavar="FILE", help="formats of single modules, TOML; default: $TRNLAB_PRECISION_RULES"
    )


def _chips(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="a chip: all its figures, with their sources")
    command.add_argument("--assumed", action="store_true", help="only the figures that nobody published")


def _cache(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("ls", "list the entries"),
        ("verify", "check every entry to its last byte"),
        ("clear", "remove everything"),
        ("explain", "what made an entry differ from its nearest neighbour"),
    ):
        action = actions.add_parser(name, help=text)
        _cache_folder(action)
        if name == "explain":
            action.add_argument("subject", metavar="KEY_OR_SCRIPT", help="start of a key, or the path of a script")


def _profile(command: argparse.ArgumentParser) -> None:
    which = command.add_mutually_exclusive_group(required=True)
    which.add_argument("folder", metavar="DIR", type=Path, nargs="?", help="folder of a run")
    which.add_argument("--import", dest="measured", metavar="FILE", type=Path, help="JSON of the vendor's profiler")
    command.add_argument("--json", metavar="FILE", type=Path, help="write the step as the vendor's profiler would")


def _compare(command: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        command.add_argument(name, metavar="RUN", type=Path, help="folder of a run, or JSON of the vendor's profiler")
    command.add_argument("--json", action="store_true", help="everything as JSON, times in picoseconds")
    command.add_argument("--page", metavar="FILE", type=Path, help="write a page with both timelines")


def _passes(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", metavar="NAME", help="the chip, e.g. trn2; default: that of kernels")
    add("--schedule", metavar="NAME", help="what is made of kernels, e.g. as-written or reuse=off")
    add(
        "script",
        metavar="SCRIPT",
        type=Path,
        nargs="?",
        help="time its kernels without each option; default: list them",
    )
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def _folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="DIR", type=Path, help="folder of a run")


def _isa(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", nargs="?", help="an instruction: operands, limits, meaning")


def _lint(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--target", metavar="NAME", help="the chip to lint for, e.g. trn2; default: that of kernels")
    add("--json", action="store_true", help="the findings as JSON")
    add("--strict", action="store_true", help="fail for warnings, too")
    add("files", metavar="FILE", type=Path, nargs="+")


def _verify(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--steps", type=int, default=3, metavar="N", help="steps to verify; default: 3")
    add("--target", metavar="NAME", help="what to simulate, e.g. trn1.2xlarge; default: $TRNLAB_TARGET")
    add("--precision", choices=("bf16", "fp32"), help="format of matmul operands; default: $TRNLAB_PRECISION or bf16")
    add("--reference", choices=("fp32", "float64"), default="fp32", help="how the host computes; default: fp32")
    add("--against", metavar="OTHER", type=Path, help="another script: compare the two on the host, module by module")
    add("--json", metavar="FILE", type=Path, help="write the verdict as JSON, see docs/verify.md")
    add("--out", metavar="DIR", type=Path, help="folder for verify.html and verify.json; default: runs/<script>-<n>")
    add("--seed", type=int, default=0, help="of the device's random numbers; default: 0")
    _cache_folder(command).add_argument("--no-cache", action="store_true", help="compile everything, keep nothing")
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def _check(command: argparse.ArgumentParser, page: bool = True) -> None:
    add = command.add_argument
    add(
        "--target",
        metavar="A,B,C",
        help="one target or several, e.g. trn1.2xlarge,trn2.3xlarge; default: $TRNLAB_TARGET",
    )
    add("--precision", choices=("bf16", "fp32"), help="format of matmul operands; default: $TRNLAB_PRECISION or bf16")
    add("--json", action="store_true", help="everything as JSON, see docs/check.md")
    if page:
        add("--page", metavar="FILE", type=Path, help="write it as a page, too")
    _cache_folder(command).add_argument(
        "--no-cache", action="store_true", help="look anew, compile all, keep nothing"
    )
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def _study(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--steps", type=int, default=20, metavar="N", help="steps in each mode; default: 20")
    add("--modes", metavar="A,B,...", help="bf16, bf16-all, fp8, mxfp8, beside fp32; default: all that the chip has")
    add("--target", metavar="NAME", help="what to simulate, e.g. trn2.3xlarge; default: $TRNLAB_TARGET")
    add("--precision-rules", metavar="FILE", help="formats of single modules, TOML")
    add("--json", action="store_true", help="everything as JSON")
    add("--out", metavar="DIR", type=Path, help="folder of the runs and the page; default: runs/<script>-<n>")
    add("--seed", type=int, default=0, help="of stochastic rounding and the device's random numbers; default: 0")
    _cache_folder(command)
    add("script", metavar="SCRIPT", type=Path)
    add("arguments", metavar="ARGS", nargs=argparse.REMAINDER, help="arguments of the script")


def _validate(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="the same as JSON, times in seconds")
    command.add_argument("--only", metavar="TEXT", help="only measurements whose name or kernel contains this")
    command.add_argument("--sources", metavar="DIR", type=Path, help="time kernels now, from their sources in DIR")
    command.add_argument(
        "--fetch-list", metavar="DIR", type=Path, help="print the git commands that put these sources into DIR"
    )
    command.add_argument(
        "--readings", action="store_true", help="what profiles say of the figures of trn2 that were read off them"
    )
    command.add_argument(
        "--record", action="store_true", help="keep what comes out as the results that the package shows"
    )
    command.add_argument("--schedule", metavar="NAME", help="what the compiler decides, as for trnlab run")
    command.add_argument("--band", action="store_true", help="with --sources: under the policy's alternatives, too")
    _cache_folder(command).add_argument("--no-cache", action="store_true", help="record and time everything anew")


def _fabric(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="chips, links, rings, rails")
    test = actions.add_parser("test", help="the vendor's nccom-test, predicted: same flags, table, JSON")
    for action in (show, test):
        action.add_argument("--target", required=True, metavar="NAME", help="trn2.48xlarge, or 4xtrn1.32xlarge")
        action.add_argument("--fault", action="append", metavar="LINK=STATE", help="such as efa:node1.rail3=down")
    add = test.add_argument
    add("operation", metavar="OPERATION", help="allr, allg, redsct, alltoall, sendrecv or permute")
    add("-r", "--nworkers", type=int, metavar="RANKS", help="default: all that the target holds")
    add("-b", "--minbytes", metavar="BYTES", default="32M", help="default: 32M")
    add("-e", "--maxbytes", metavar="BYTES", default="32M", help="default: 32M")
    add("-i", "--stepbytes", metavar="BYTES", help="from size to size; default: a tenth of the way")
    add("-f", "--stepfactor", type=int, metavar="FACTOR", help="from size to size")
    add("-d", "--datatype", default="uint8", metavar="TYPE", help="such as fp32 or bf16; default: uint8")
    add("-c", "--check", nargs="?", const="random", choices=("random", "all_ones"), help="run it on data, too")
    add("--seed", type=int, default=0, help="of the data; default: 0")
    add("--show-algorithm", action="store_true", help="a column with the algorithm")
    add("--show-input-output-size", action="store_true", help="two columns with the bytes in and out")
    add("--data-parallel-dimension", type=int, metavar="SIZE", help="groups of this size, as far apart as possible")
    add("--custom-replica-groups", type=Path, metavar="FILE", help="groups of ranks, as JSON")
    add("--custom-src-target-pairs", type=Path, metavar="FILE", help="pairs of permute, as JSON")
    add("--report-to-json-file", type=Path, metavar="FILE", help="write the table as JSON")


def _cache_folder(command: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    group = command.add_mutually_exclusive_group()
    group.add_argument("--cache", metavar="DIR", type=Path, help="folder of the cache; default: $TRNLAB_CACHE")
    return group


if __name__ == "__main__":
    sys.exit(main())

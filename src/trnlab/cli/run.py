# SPDX-License-Identifier: Apache-2.0
"""`trnlab run`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from functools import partial
from pathlib import Path

from trnlab.cli import options
from trnlab.cli.kernels import vendor_tools
from trnlab.errors import UsageError
from trnlab.files import write_atomic
from trnlab.frontends import unedited, vendor_imports
from trnlab.graph.ir import Graph
from trnlab.graph.stablehlo import to_stablehlo
from trnlab.nki.imports import install_imports
from trnlab.runtime.checkpoint_plan import CheckpointUse, plan
from trnlab.runtime.jobs import elastic, ranks
from trnlab.runtime.jobs.leading_imports import leading
from trnlab.runtime.notices import say
from trnlab.runtime.run import RunRecord, new_folder
from trnlab.runtime.script import Script, run_script
from trnlab.runtime.session import Session, for_kernels
from trnlab.runtime.settings import Settings


def is_module(path: Path) -> bool:
    """Whether a file holds a module of StableHLO or an export of JAX, by its name, or by bytes that no script has."""
    if path.suffix in (".mlir", ".mlirbc", ".stablehlo"):
        return True
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(4096)
    except OSError:
        return False  # which is said where the script is looked for


def _emit(session: Session, graph: Graph, key: str) -> None:
    assert isinstance(session.run, RunRecord)
    path = session.run.folder / "stablehlo" / f"{graph.name}-{key[:12]}.mlir"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, to_stablehlo(graph).encode())


def _start_ranks(args: argparse.Namespace, settings: Settings) -> int:
    """The same command once for each rank, in folders within one."""
    size = elastic.ElasticSize(*elastic.parse(args.ranks), args.spares, args.max_restarts)
    session = for_kernels(settings)
    session.require_target()
    elastic.require_room(size, session)
    session.check_faults(size.most)
    ranks.check_choice(os.environ)
    file = Script(args.script, args.arguments, args.module).file  # says at once when it cannot be read
    imports = () if args.module else leading(file)  # a module's packages are imported before it
    root = args.out if args.out is not None else new_folder(Path("runs"), args.script.stem)
    options = ranks.without(sys.argv[2:], "--ranks", "--out", "--max-restarts", "--spares")
    return elastic.start(size, options, root, session, imports)


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab run`."""
    add = command.add_argument
    options.settings(command, "target", "precision", "precision_rules")
    add("--out", metavar="DIR", type=Path, help="folder of the run; default: runs/<script>-<n>")
    add("--ranks", metavar="N", help="start it as so many ranks of torch.distributed, a core each; 2:4: at least 2")
    add(
        "--max-restarts",
        type=options.whole(0, 1 << 20),
        default=0,
        metavar="N",
        help="when ranks die, start again so often; default: 0",
    )
    add(
        "--spares",
        type=options.whole(0, 1 << 20),
        default=0,
        metavar="N",
        help="ranks that take the place of those that die; default: 0",
    )
    options.settings(
        command,
        "lnc",
        "optimize",
        "fault",
        "comm_threshold",
        "stochastic_rounding",
        "seed",
        "set",
        "schedule",
        "band",
    )
    options.settings(command, "check", "check_nan")
    options.cache(command)
    options.settings(command, "checkpoint", "every", "keep")
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


def main(args: argparse.Namespace) -> int:
    """Run a script; returns its exit status."""
    if args.checkpoint is None and (args.every is not None or args.keep is not None):
        raise UsageError(
            "--every and --keep are of checkpoints", code="TRN534", remedy="say where: --checkpoint s3://team/run7"
        )
    settings = Settings.resolved(os.environ, args)
    settings.hold()
    plan()  # says at once what is wrong with it
    if args.ranks is None and (args.spares or args.max_restarts):
        raise UsageError(
            "--spares and --max-restarts are of several ranks", code="TRN276", remedy="say how many: --ranks 2:4"
        )
    if args.ranks is not None:
        return _start_ranks(args, settings)
    session = for_kernels(settings)
    session.check_faults(int(os.environ.get("WORLD_SIZE") or 1))
    if args.emit_stablehlo:
        session.emit = partial(_emit, session)
    if not args.module and args.script.suffix != ".py" and is_module(args.script):
        files = importlib.import_module("trnlab.frontends.stablehlo.file")
        return int(files.run_file(args.script, session, args.out, args.inputs))
    if args.inputs is not None:
        raise UsageError(
            "--inputs is for modules of StableHLO",
            code="TRN236",
            got=str(args.script),
            remedy="give a script its inputs as arguments behind its name",
        )
    script = Script(args.script, args.arguments, args.module)
    script.file  # noqa: B018  (says at once when it cannot be read)
    install_imports(override=args.own_nki)
    vendor_imports.install(override=args.own_nki)
    with unedited.reaching_the_chip(session), vendor_tools.on_path(args.own_nki):
        status = run_script(script, session, args.out)
    _tell_of_checkpoints(session)
    return status


def _tell_of_checkpoints(session: Session) -> None:
    """What the checkpoints that were asked for would cost, or that there is none."""
    wanted = plan()
    if wanted is None:
        return
    if CheckpointUse.by is None:
        say("TRN533: no checkpoint was written: the script has neither a step of compile_step nor trnlab.checkpoint")
    elif int(os.environ.get("RANK") or 0) == 0 and CheckpointUse.latest_bytes:
        # It brings all of the planner, which no other run needs.
        from trnlab.fleet.reliability.checkpoint_cost import sentence

        many = int(os.environ.get("WORLD_SIZE") or 1)
        here = session.target.chips
        say(
            sentence(
                wanted.place, CheckpointUse.latest_bytes * many, here * session.instances, here, many, wanted.keep
            )
        )

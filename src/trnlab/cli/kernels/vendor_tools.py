# SPDX-License-Identifier: Apache-2.0
"""The vendor's command-line tools that scripts of kernels start, as far as such scripts use them.

    neuron-profile view -n kernel.neff -s kernel.ntff --output-format summary-json
    neuron-profile capture -n kernel.neff -s kernel.ntff --num-exec 20 --profile-nth-exec 10
    neuron-ls --json-output

A .neff here is a recorded kernel (`nki.portable`), a .ntff a timeline with the profiler's counters (`timeline`).
While `on_path` holds, processes that a script starts find them where they look for the vendor's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trnlab import timeline as timelines
from trnlab.errors import TrnlabError
from trnlab.files import write_atomic

TOOLS = ("neuron-profile", "neuron-ls")
SUMMARY, FULL = "summary-json", "json"
_LINES = '#!/bin/sh\nexec "{python}" -m trnlab.cli.kernels.vendor_tools {tool} "$@"\n'


@contextmanager
def on_path(override: bool) -> Iterator[None]:
    """Within the block the tools are found on the path. override: also where the vendor's are installed.

    Where no file can be written they are not there: that is said by whoever needs one, and most scripts need none.
    """
    before = os.environ.get("PATH")
    folder = _written([tool for tool in TOOLS if override or shutil.which(tool) is None])
    if folder is not None:
        os.environ["PATH"] = os.pathsep.join([folder, *([before] if before else [])])
    try:
        yield
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            if before is None:
                del os.environ["PATH"]
            else:
                os.environ["PATH"] = before


def _written(tools: Sequence[str]) -> str | None:
    """A folder with a program for each tool; None where it cannot be written."""
    folder = None
    try:
        folder = tempfile.mkdtemp(prefix="trnlab-tools-")
        for tool in tools:
            path = Path(folder) / tool
            path.write_text(_LINES.format(python=sys.executable, tool=tool), encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    except OSError:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def main(argv: Sequence[str]) -> int:
    """Run a tool: its name, then its arguments; returns its exit status."""
    tool, *words = argv
    try:
        return _ls(words) if tool == "neuron-ls" else _profile(words)
    except (TrnlabError, OSError) as error:
        print(f"{tool}: {error}", file=sys.stderr)
        return 1


def _profile(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="neuron-profile")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("view", "capture"):
        command = commands.add_parser(name)
        command.add_argument("-n", "--neff-path", type=Path, required=True)
        command.add_argument("-s", "--session-file", type=Path, required=name == "view", default=Path("profile.ntff"))
        command.add_argument("--output-format", default=SUMMARY)
        command.add_argument("--output-file", type=Path)
        command.add_argument("--num-exec", type=int, default=1)
        command.add_argument("--profile-nth-exec", type=int, default=1)
    args, ignored = parser.parse_known_args(words)
    if ignored:
        print(f"neuron-profile: {' '.join(ignored)}: means nothing here", file=sys.stderr)
    return _view(args) if args.command == "view" else _capture(args)


def _view(args: argparse.Namespace) -> int:
    counters = timelines.load(args.session_file).meta.get("counters", {})
    if args.output_format == SUMMARY:
        text = json.dumps({f"n_{args.neff_path.stem}": counters})
    elif args.output_format == FULL:
        text = json.dumps({"summary": [counters]})
    else:
        text = "\n".join(f"{name:45} {value}" for name, value in counters.items())
    if args.output_file is not None:
        write_atomic(args.output_file, text.encode())
    else:
        print(text)
    return 0


def _capture(args: argparse.Namespace) -> int:
    """Every profiled execution is the same one: a file for each, as the vendor's names them."""
    from trnlab.nki import portable
    from trnlab.nki.target import default_chip

    chip = default_chip()
    found = portable.loads(args.neff_path.read_bytes(), chip).profiled(chip)
    stem, suffix = args.session_file.with_suffix(""), args.session_file.suffix or ".ntff"
    several = range(args.profile_nth_exec, args.num_exec + 1, args.profile_nth_exec) if args.num_exec > 1 else ()
    for path in (args.session_file, *(stem.with_name(f"{stem.name}_exec_{n}{suffix}") for n in several)):
        timelines.save(found, path)
    return 0


def _ls(words: Sequence[str]) -> int:
    """The chips of the target, a line or an entry each."""
    from trnlab.runtime import session
    from trnlab.runtime.settings import Settings

    target = session.for_kernels(Settings.resolved(os.environ)).target
    cores = target.cores // max(target.chips, 1)
    rows = [
        {"neuron_device": n, "nc_count": cores, "neuroncore_ids": list(range(n * cores, (n + 1) * cores))}
        for n in range(target.chips)
    ]
    if set(words) & {"--json-output", "-j"}:
        print(json.dumps(rows))
    else:
        print("\n".join(f"{row['neuron_device']:3}  {row['nc_count']} cores" for row in rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""`trnlab passes`."""

from __future__ import annotations

import argparse
import os
import textwrap
from pathlib import Path

from trnlab import policy

_STAGES = {
    policy.RECORDING: "in the recording of a kernel, before its tiles get addresses, in this order",
    policy.ROOM: "where its tiles do not fit",
    policy.TIME: "when its instructions run",
}


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab passes`."""
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


def main(args: argparse.Namespace) -> int:
    """List the options, or run a script and say what they made of its kernels; returns its exit status."""
    if args.schedule:
        policy.configure(args.schedule)
    if args.script is None:
        print(listed())
        return 0
    from trnlab.nki.explain import watching  # with everything that runs kernels
    from trnlab.nki.imports import install_imports
    from trnlab.runtime.script import Script, execute
    from trnlab.runtime.session import activate, for_kernels
    from trnlab.runtime.settings import Settings

    script = Script(args.script, args.arguments)
    script.file  # noqa: B018  (says at once when it cannot be read)
    install_imports()
    session = for_kernels(Settings.resolved(os.environ, args))
    with activate(session), watching(lambda found: print(found, flush=True)):
        return execute(script)


def listed() -> str:
    """All options by stage: value in the policy `scheduled`, what it does, what it may be."""
    width = max(len(o.name) for o in policy.options())
    lines = ["What the hardware's compiler is taken to make of a kernel; --schedule NAME=VALUE,... switches it."]
    for stage, title in _STAGES.items():
        lines += ["", title]
        for o in policy.options():
            if o.stage == stage:
                first, *rest = textwrap.wrap(o.about, 118 - width - 14)
                lines.append(f"    {o.name:<{width}}  {policy.shown(o.default):<6}  {first}")
                lines += [" " * (width + 14) + text for text in [*rest, *_more(o)]]
    lines += ["", f"policies: {', '.join(policy.POLICIES)} (only what makes room is on)"]
    return "\n".join(lines)


def _more(o: policy.Option) -> list[str]:
    """What there is to say beyond its line."""
    found = [] if isinstance(o.default, bool) else [f"may be {o.values}"]
    found += [f"{place}: {policy.shown(value)}" for place, value in o.differs.items()]
    if o.alternatives:
        found.append(f"not excluded: {', '.join(map(policy.shown, o.alternatives))}")
    return found + ([f"rests on {o.evidence}"] if o.evidence else [])

# SPDX-License-Identifier: Apache-2.0
"""`trnlab passes`."""

from __future__ import annotations

import argparse
import textwrap

from trnlab import policy

_STAGES = {
    policy.RECORDING: "in the recording of a kernel, before its tiles get addresses, in this order",
    policy.ROOM: "where its tiles do not fit",
    policy.TIME: "when its instructions run",
}


def main(args: argparse.Namespace) -> int:
    """List the options."""
    print(listed())
    return 0


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

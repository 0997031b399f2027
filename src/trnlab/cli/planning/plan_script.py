# SPDX-License-Identifier: Apache-2.0
"""`trnlab plan --script`: somebody's training script, captured, as the model of a plan."""

from __future__ import annotations

import argparse
import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from trnlab.cli.check import as_one_of, prepared
from trnlab.cli.views import effect_lines, in_view, lend
from trnlab.errors import UsageError
from trnlab.estimate.job import NullCommunicator
from trnlab.fabric.cluster import Cluster
from trnlab.fleet.models.captured import CapturedWork, recognised, whole
from trnlab.fleet.models.transformer import Model
from trnlab.runtime.notices import say
from trnlab.runtime.script import Script
from trnlab.runtime.session import from_settings
from trnlab.runtime.settings import Settings
from trnlab.view.effects import Effects
from trnlab.view.followed import ScriptExitedError

ANY = "trn1.32xlarge"  # whose formats a script has that is planned for other vendors' instances alone
STEPS = 1000  # that are planned where no number of tokens is given


@dataclass(frozen=True)
class Scripted:
    """The training of a script, as far as a plan needs it."""

    model: Model  # what the script trains
    captured: CapturedWork | None  # its step, where that is only divided by data
    spelled: tuple[str, ...]  # as words of a command line
    sequence: int  # tokens of each of its sequences
    why: str = ""  # what its model was not recognised for


def scripted(args: argparse.Namespace, target: str) -> Scripted:
    """Follow the script without values, as one rank that has no others, and find out what it trains.

    Raises UsageError (TRN193) where it makes no step, TRN178 for a sequence or a precision that is not its own.
    """
    try:
        given = _given(args, target)
        step, effects = in_view("trnlab.cli.planning.plan_script:in_process", given, from_settings(given.settings))
    except ScriptExitedError as ended:
        _say_all(ended.effects)
        raise ended.error() from None
    _say_all(effects)
    found = recognised(step)
    words = ("--script", args.script, *(("--arguments", args.arguments) if args.arguments else ()))
    if found.model is not None:
        say(f"{step.source} trains a stack of {found.model.layers} equal blocks, {found.model.hidden} wide")
        return Scripted(found.model, None, words, found.model.sequence)
    say(f"{step.source} is planned as it is, divided by data alone: {found.why}")
    if args.sequence:
        raise UsageError(
            "a script that is planned as it is has sequences of its own",
            code="TRN178",
            limit=f"{step.units} tokens",
            got=args.sequence,
            remedy="leave --sequence out, or change it in the script (--arguments)",
        )
    return Scripted(whole(step), step, words, step.units, found.why)


def _given(args: argparse.Namespace, target: str) -> argparse.Namespace:
    """What the process in the view needs to know."""
    names = ("script", "arguments", "allow")
    given = {name: getattr(args, name, None) for name in names}
    return argparse.Namespace(**given, settings=_settings(args, target))


def in_process(args: argparse.Namespace) -> CapturedWork:
    """Within a view: the step of a script."""
    session = lend(from_settings(args.settings))
    prepared()
    from trnlab.frontends.torch.check.planned import captured  # PyTorch takes a while

    session.communicator = NullCommunicator(0, 1)
    with as_one_of(Cluster(session.target, 1), session):
        return captured(Script(Path(args.script), shlex.split(args.arguments)), session)


def _say_all(effects: Effects) -> None:
    if not effects.none:
        for line in effect_lines(effects):
            say(line)


def _settings(args: argparse.Namespace, target: str) -> Settings:
    return Settings.resolved(os.environ, args, target=target or ANY)

# SPDX-License-Identifier: Apache-2.0
"""The command line: numbers that cannot be, for every option that takes one, and Ctrl-C at any moment."""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from tools.attack import Outcome
from trnlab.cli.commands import COMMANDS, parser
from trnlab.cli.options import NumberRange
from trnlab.errors import UsageError

NUMBERS = (
    "-1",
    "-99999999999999999999",
    "9" * 400,
    "9" * 5000,
    "1e999",
    "nan",
    "inf",
    "-inf",
    "0x10",
    "1.5e",
    "",
    " ",
    "1_0_",
    "٣",
    "x",
)


def numbers(inputs: int, seed: int) -> Outcome:
    """Every option with a range refuses what is none of its numbers, in an error with a code."""
    del inputs, seed  # all of them, each time
    outcome = Outcome()
    for name in COMMANDS:
        for read, option in _ranged(parser(name)):
            for told in NUMBERS:
                try:
                    value = read(told)
                except UsageError as error:
                    outcome.counts["refused"] += error.code == "TRN569"
                except Exception as error:
                    outcome.failures.append(f"{name} {option} {told[:20]!r}: {type(error).__name__}")
                else:
                    outcome.counts["taken"] += 1
                    if not -(1 << 63) <= value < 1 << 63:
                        outcome.failures.append(f"{name} {option} takes {told[:20]!r}")
    return outcome


def _ranged(of: argparse.ArgumentParser) -> Iterator[tuple[NumberRange, str]]:
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _ranged(each)
        elif isinstance(action.type, NumberRange):
            yield action.type, "/".join(action.option_strings)


def interrupts(inputs: int, seed: int) -> Outcome:
    """Ctrl-C ends the command with a line or without a word, from its first moment to its last. What comes before
    trnlab's first line is Python's own start, whose tracebacks are counted, and no failure of ours."""
    outcome, command = Outcome(), [sys.executable, "-m", "trnlab", "chips"]
    started = time.monotonic()
    subprocess.run(command, capture_output=True)
    whole = time.monotonic() - started
    for number in range(inputs):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        time.sleep(random.Random(f"{seed} {number}").uniform(0, 1.1 * whole))
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1].decode(errors="replace")
        if "Traceback" not in told:
            outcome.counts["clean"] += 1
        elif "trnlab/" in told:
            outcome.failures.append(told[-300:])
        else:
            outcome.counts["in Python's own start"] += 1
    return outcome

# SPDX-License-Identifier: Apache-2.0
"""Kills training at random moments and starts it again until it ends: every loss must be that of an undisturbed run.

    python -m tools.storage.resumes [--kills 1000] [--seed 0] [--style steps|eager|script] [--place DIR_OR_URL]

Each trial is a run of `training.py` with `--checkpoint`, which a SIGKILL ends after a random time, start and writing
of checkpoints included; now and then the newest checkpoint is damaged. A trial ends when the script does. What it
logged, to the last bit of the loss and of the weights, is compared with a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints

SCRIPT = Path(__file__).with_name("training.py")


@dataclass
class Outcome:
    """Kills, starts, damaged checkpoints, and what should not have happened."""

    kills: int = 0
    ends: int = 0
    damaged: int = 0
    replaced: int = 0  # times that an older checkpoint was taken
    failures: list[str] = field(default_factory=list)


def trials(place: str, kills: int, seed: int, style: str, folder: Path) -> Outcome:
    """Kill trials of a style until there were so many kills."""
    pick, outcome = random.Random(seed), Outcome()
    started = time.monotonic()
    wanted = _lines(_started(style, folder / "whole.log", None, folder, None))
    longest = time.monotonic() - started
    for number in range(1 << 30):
        if outcome.kills >= kills:
            break
        most = min(12, kills - outcome.kills)
        _trial(f"{place}/{number}", wanted, 1.1 * longest, most, pick, style, folder, outcome)
    return outcome


def _trial(
    place: str,
    wanted: list[str],
    longest_s: float,
    most: int,
    pick: random.Random,
    style: str,
    folder: Path,
    outcome: Outcome,
) -> None:
    """One training, killed at most so many times, until it comes to its end."""
    log = folder / f"{outcome.ends}.log"  # of this training alone
    before = outcome.kills
    while not any(line.startswith("end") for line in _lines(log)):
        if outcome.kills - before >= most:
            _started(style, log, place, folder, None)  # it has been killed enough
            break
        if pick.random() < 0.2:
            outcome.damaged += _damage(place, pick)
        after = pick.uniform(0.2, 1.0) * longest_s
        killed = _started(style, log, place, folder, after) is None
        outcome.kills += killed
        if not killed and not any(line.startswith("end") for line in _lines(log)):
            outcome.failures.append(f"{place}: a training ended by itself before its last step, see said.txt")
            return
    outcome.ends += 1
    said = (folder / "said.txt").read_text(errors="replace")
    outcome.replaced += said.count("is not whole, the one before it is taken")
    for line in _lines(log):
        if line not in wanted:
            outcome.failures.append(f"{place}: {line}")
    missing = [line for line in wanted if line not in _lines(log)]
    if missing:
        outcome.failures.append(f"{place}: {len(missing)} steps are missing")


def _started(style: str, log: Path, place: str | None, folder: Path, after_s: float | None) -> Path | None:
    """Run the script in a process; None where it was killed before its end."""
    child = os.fork()
    if child == 0:
        _be_the_script(style, log, place, folder)
    killed = False
    if after_s is not None:
        deadline = time.monotonic() + after_s
        while time.monotonic() < deadline:
            if os.waitpid(child, os.WNOHANG)[0]:
                return log
            time.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            killed = True
    _, status = os.waitpid(child, 0)
    return None if killed and os.WIFSIGNALED(status) else log


def _be_the_script(style: str, log: Path, place: str | None, folder: Path) -> None:
    from trnlab.cli.main import main

    said = os.open(folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    kept = ["--checkpoint", place, "--every", "3", "--keep", "2"] if place is not None else []
    options = ["--target", "trn1.2xlarge", "--precision", "bf16-all", "--cache", str(folder / "cache")]
    status = 1
    try:
        os.chdir(folder)
        status = main(["run", *options, *kept, str(SCRIPT), style, str(log)])
        import threading

        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
    finally:
        os._exit(status)


def _damage(place: str, pick: random.Random) -> int:
    """Damage the newest of two whole checkpoints; returns how many were damaged."""
    store = open_store(place)
    done = [c for c in Checkpoints(store).all() if c.done and not Checkpoints(store).problems(c.step)]
    if len(done) < 2:
        return 0
    item = pick.choice([i for i in store.items(f"{done[0].name}/rank_00000/") if i.size])
    content = bytearray(store.read(item.name))
    content[pick.randrange(len(content))] ^= 1 << pick.randrange(8)
    store.write(item.name, bytes(content[: pick.choice((len(content), len(content) // 2))]))
    return 1


def _lines(log: Path | None) -> list[str]:
    """Whole lines; the last of a killed run may be half a line."""
    text = log.read_text() if log is not None and log.exists() else ""
    return [line for line in text.split("\n")[:-1] if line]


def main() -> int:
    """The command; returns 1 when something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--style", choices=("steps", "eager", "script"), default="steps")
    parser.add_argument("--place", metavar="DIR_OR_URL", help="default: a temporary folder")
    args = parser.parse_args()
    import trnlab.frontends.torch.step  # noqa: F401  (imported once, for all that are forked)

    with tempfile.TemporaryDirectory() as folder:
        outcome = trials(args.place or f"{folder}/runs", args.kills, args.seed, args.style, Path(folder))
    print(f"{outcome.kills} kills, {outcome.ends} trainings came to their end, {len(outcome.failures)} failures;")
    print(f"{outcome.damaged} checkpoints damaged, {outcome.replaced} times the one before was taken")
    for failure in outcome.failures[:20]:
        print(f"  {failure}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())

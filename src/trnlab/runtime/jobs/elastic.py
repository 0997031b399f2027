# SPDX-License-Identifier: Apache-2.0
"""A job of ranks that goes on when some of them die: with spares, or with fewer; and what that cost.

<root>/                 the first attempt, see `ranks`
<root>/restarts/<n>/    the others
<root>/job.json         every attempt: how many ranks, from which step to which, who died, what was lost
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trnlab.errors import CollectiveError, TrnlabError, UsageError
from trnlab.files import json_of, write_atomic
from trnlab.profile import data
from trnlab.runtime import fault_injection
from trnlab.runtime.analysis.traffic import Fabric
from trnlab.runtime.checkpoint_plan import plan
from trnlab.runtime.jobs import ranks
from trnlab.runtime.jobs.leading_imports import Imports
from trnlab.runtime.notices import say
from trnlab.runtime.session import Session
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints

FILE = "job.json"
LOST = "TRN557"
HARDWARE = ("TRN555", "TRN556")  # of a rank whose device failed, and not of one that waits for it
_OURS = (signal.SIGTERM, signal.SIGINT)
_ASKED = (130, 143)  # exit statuses of a run that somebody stopped


@dataclass(frozen=True)
class ElasticSize:
    """Ranks of a job: at least, at most; spares that stand by; how often it may start again."""

    least: int
    most: int
    spares: int = 0
    restarts: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or self.spares < 0 or self.restarts < 0:
            raise UsageError(
                "ranks, spares or restarts that cannot be",
                code="TRN276",
                got=f"{self.least}:{self.most}, {self.spares} spares, {self.restarts} restarts",
                limit="1 rank and more, the least before the most",
                remedy="such as --ranks 2:4 --max-restarts 3",
            )


def parse(text: str) -> tuple[int, int]:
    """`4` or `2:4`: the fewest ranks and the most. Raises UsageError (TRN276)."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"{text!r} is no number of ranks",
            code="TRN276",
            got=text,
            limit="N, or FEWEST:MOST",
            remedy="--ranks 4, or --ranks 2:4",
        )
    return int(parts[0]), int(parts[-1])


@dataclass
class Attempt:
    """One start of a job."""

    ranks: int
    folder: str
    status: int
    # first, last: steps that it began with and that it finished, of the job
    first: int = 1
    last: int = 0
    dead: list[int] = field(default_factory=list)  # ranks
    triggered: list[str] = field(default_factory=list)
    lost_steps: int = 0  # done and not in a checkpoint
    lost_tokens: int = 0  # as the ranks report them, all ranks together
    lost_s: float | None = None  # on the devices
    # of all instances for that time. None: not known.
    lost_usd: float | None = None


def start(size: ElasticSize, arguments: Sequence[str], root: Path, session: Session, imports: Imports = ()) -> int:
    """`trnlab run ARGUMENTS` on ranks, again and again as far as `size` allows; returns the exit status.

    imports: those that the script begins with. Raises CollectiveError (TRN558) where too few ranks are left to go on.
    """
    attempts: list[Attempt] = []
    now, spares = size.most, size.spares
    while True:
        folder = root if not attempts else root / "restarts" / str(len(attempts))
        given = {
            **os.environ,
            fault_injection.STRUCK: str(root.resolve() / "struck"),
            fault_injection.ATTEMPT: str(len(attempts)),
        }
        ended = ranks.run(now, arguments, folder, given, imports)
        attempt = _judged(ended, folder, session)
        attempts.append(attempt)
        _write(root, attempts)
        if attempt.status == 0 or attempt.status in _ASKED:
            return attempt.status
        _say(attempt)
        if len(attempts) > size.restarts:
            return attempt.status
        gone = max(1, len(attempt.dead))
        taken = min(gone, spares)
        spares -= taken
        now = _fewer(now - gone + taken, size, lambda n: _allowed(session, n))
        say(
            f"restart {len(attempts)} of {size.restarts}, on {now} rank{'' if now == 1 else 's'}"
            + (f", {taken} of them spares" if taken else "")
        )


def _fewer(most: int, size: ElasticSize, allowed: Callable[[int], bool]) -> int:
    """The most ranks up to `most` that the target starts."""
    for ranks_ in range(most, size.least - 1, -1):
        if allowed(ranks_):
            return ranks_
    raise CollectiveError(
        f"{most} ranks are left, and the job cannot go on",
        code="TRN558",
        got=most,
        limit=f"at least {size.least}, and a number that the target starts",
        remedy="start it again when there are instances, allow fewer (--ranks 1:4), or keep spares (--spares 1)",
    )


def require_room(size: ElasticSize, session: Session) -> None:
    """Raises the error of a job of more ranks than its target starts, before any process does."""
    before = session.counters.fabric
    try:
        Fabric(session, size.most, 0)
    finally:
        session.counters.fabric = before


def _allowed(session: Session, ranks_: int) -> bool:
    try:
        require_room(ElasticSize(ranks_, ranks_), session)
    except TrnlabError:
        return False
    return True


def _judged(ended: ranks.JobExit, folder: Path, session: Session) -> Attempt:
    """What came of an attempt, from what its ranks left."""
    said = [_summary(ranks.folder_of(folder, rank)) for rank in range(len(ended.ranks))]
    attempt = Attempt(len(ended.ranks), str(folder), ended.status)
    resumed = max((int(each.get("resumed", 0)) for each in said), default=0)
    attempt.first, attempt.last = resumed + 1, resumed + max((int(each.get("steps", 0)) for each in said), default=0)
    attempt.dead = [rank for rank, status in enumerate(ended.ranks) if _died(status, said[rank])]
    notes = fault_injection.triggered(folder_of_notes(folder))
    number = int(folder.name) if folder.parent.name == "restarts" else 0
    attempt.triggered = [f"{note['fault']} on rank {note['rank']}" for note in notes if note["attempt"] == number]
    if attempt.status and attempt.status not in _ASKED:
        _lost(attempt, said, session)
    return attempt


def folder_of_notes(folder: Path) -> Path:
    """Where faults that struck are noted: beside the first attempt."""
    return (folder.parents[1] if folder.parent.name == "restarts" else folder) / "struck"


def _died(status: int, said: Mapping[str, Any]) -> bool:
    if status < 0:
        return -status not in _OURS
    return status > 0 and str(said.get("failure", "")).startswith(HARDWARE)


def _lost(attempt: Attempt, said: Sequence[Mapping[str, Any]], session: Session) -> None:
    """Work that is in no checkpoint, in steps, tokens, seconds and dollars."""
    attempt.lost_steps = max(0, attempt.last - _kept())
    tokens = [int(each["tokens_per_step"]) for each in said if each.get("tokens_per_step")]  # who was killed has none
    attempt.lost_tokens = attempt.lost_steps * sum(tokens) * len(said) // max(1, len(tokens))
    times = [float(each["step_time_s"]) for each in said if each.get("step_time_s")]
    if times:
        attempt.lost_s = attempt.lost_steps * max(times)
        price = session.target.price
        attempt.lost_usd = price.usd_of(attempt.lost_s, session.instances) if price is not None else None


def _kept() -> int:
    """The step of the newest checkpoint that is done; 0 where there is none, or no place for any."""
    chosen = plan()
    if chosen is None:
        return 0
    try:
        return max((c.step for c in Checkpoints(open_store(chosen.place)).all() if c.done), default=0)
    except OSError:
        return 0


def _say(attempt: Attempt) -> None:
    who = f"ranks {', '.join(map(str, attempt.dead))} died" if attempt.dead else "a rank failed"
    if len(attempt.dead) == 1:
        who = f"rank {attempt.dead[0]} died"
    why = f" ({'; '.join(attempt.triggered)})" if attempt.triggered else ""
    money = "" if attempt.lost_usd is None else f", ${attempt.lost_usd:.3g}"
    spent = "" if attempt.lost_s is None else f", {attempt.lost_s:.3g} s of the devices{money}"
    when = f"after step {attempt.last}" if attempt.last else "before a step of compiled code, which alone is counted"
    say(
        f"{LOST}: {who} {when}{why}; lost since the newest checkpoint: "
        f"{attempt.lost_steps} step{'' if attempt.lost_steps == 1 else 's'}, "
        f"{attempt.lost_tokens:,} tokens{spent}"
    )


def _summary(folder: Path) -> dict[str, Any]:
    try:
        found = json_of((folder / data.FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(root: Path, attempts: Sequence[Attempt]) -> None:
    rows = [
        {"struck" if key == "triggered" else key: value for key, value in asdict(each).items()} for each in attempts
    ]
    record = {"schema": "trnlab.job", "version": 1, "attempts": rows}
    write_atomic(root / FILE, json.dumps(record, indent=2).encode())

# SPDX-License-Identifier: Apache-2.0
"""What a rank asks for, in a form that ranks exchange before they move data; and what to say where they disagree."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from trnlab.errors import CollectiveError

HEADER_BYTES = 1024
LONGEST_SITE = 300
REFUSED_BY_JOINED = "TRN287"
ANSWERED = ("all_reduce", "barrier")  # by ranks that have joined
COMPARED = {"operation": "operation", "dtype": "format", "elements": "size", "reduction": "reduction", "root": "root"}


@dataclass(frozen=True)
class CollectiveCall:
    """One collective or transfer, as one rank asks for it."""

    operation: str
    dtype: str = ""
    elements: int = -1  # of its tensor, -1 where ranks may differ
    reduction: str = ""
    root: int = -1  # position in the group, -1 where there is none
    number: int = 0  # counts the calls of a group from one
    site: str = ""  # the line of the user's script
    # gives, takes: how many elements go to and come from each position, where parts are not equal
    gives: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()
    # of a rank that has no more to do: how many calls of the others it has answered since, and when that began, in
    # ns since 1970
    joined: tuple[int, ...] = ()

    def encoded(self) -> bytes:
        """The header that goes to partners. Its length is fixed, so a site that is too long loses its beginning."""
        values = list(astuple(self))
        values[6] = self.site[-LONGEST_SITE:]
        return json.dumps(values, separators=(",", ":")).encode().ljust(HEADER_BYTES)

    @property
    def text(self) -> str:
        """For people: all_reduce(sum) of 1,024 float32."""
        kind = f"{self.operation}({self.reduction})" if self.reduction else self.operation
        size = f" of {self.elements:,} {self.dtype}" if self.elements >= 0 else ""
        return f"{kind}{size}" + (f" with root {self.root}" if self.root >= 0 else "")


def decoded(header: bytes) -> CollectiveCall:
    """The call that `CollectiveCall.encoded` packed."""
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in json.loads(header)]
    return CollectiveCall(*values)


def check(calls: Mapping[int, CollectiveCall], group: str) -> None:
    """Raise CollectiveError (TRN270) when ranks ask for different things. `calls`: by rank."""
    ranks = sorted(calls)
    for field, name in COMPARED.items():
        if len({getattr(calls[rank], field) for rank in ranks}) > 1:
            raise mismatch(calls, f"ranks disagree on the {name} of collective {calls[ranks[0]].number} of {group}")
    for i, giver in enumerate(ranks):
        for k, taker in enumerate(ranks):
            gives, takes = calls[giver].gives, calls[taker].takes
            if gives and takes and gives[k] != takes[i]:
                raise mismatch(calls, f"rank {giver} gives {gives[k]} elements to rank {taker}, who takes {takes[i]}")


def check_of_joined(calls: Mapping[int, CollectiveCall], group: str) -> None:
    """Raise CollectiveError (TRN287) where some ranks have joined and the others ask for what they cannot answer.
    `calls`: by rank."""
    joined = [rank for rank in sorted(calls) if calls[rank].joined]
    asked = {rank: call for rank, call in calls.items() if not call.joined}
    if joined and any(call.operation not in ANSWERED for call in asked.values()):
        raise CollectiveError(
            f"a collective of {group} that {named(joined)} cannot answer after join()",
            code=REFUSED_BY_JOINED,
            got=_asked(asked),
            limit="ranks that have joined take part in reductions, with zeros, and in barriers",
            remedy="let all ranks make the call before the first of them joins",
        )


def last_joined(calls: Mapping[int, CollectiveCall]) -> int:
    """The rank that joined last: it has answered the fewest calls, or began the latest. `calls`: by rank."""
    return max(calls, key=lambda rank: (-calls[rank].joined[0], calls[rank].joined[1], rank))


def _asked(calls: Mapping[int, CollectiveCall]) -> str:
    """A line for each rank, those that ask for the same together."""
    asked: dict[str, list[int]] = {}
    for rank, call in sorted(calls.items()):
        asked.setdefault(f"{call.text} at {call.site}", []).append(rank)
    return "\n         ".join(f"{named(ranks)}: {text}" for text, ranks in asked.items())


_RULE = (
    "all ranks of a group call the same collectives, in the same order, with equal format, size, reduction and root"
)


def mismatch(calls: Mapping[int, CollectiveCall], what: str, rule: str = _RULE) -> CollectiveError:
    """The error, with a line for each rank, those that ask for the same together."""
    return CollectiveError(
        what,
        code="TRN270",
        got=_asked(calls),
        limit=rule,
        remedy="find the branch or loop that one of these ranks takes and the others do not",
    )


def named(ranks: list[int]) -> str:
    """rank 3, ranks 0-2, ranks 0, 2."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2:
        return f"ranks {ranks[0]}-{ranks[-1]}"
    return f"ranks {', '.join(map(str, ranks))}"

# SPDX-License-Identifier: Apache-2.0
"""Damage: of bytes, of text, of trees of plain values. All draws come from the generator that is handed in."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

MARK = "xfuzz"  # the element and attribute that markup injects; a page that holds either as markup is broken
MARKUP = (
    f"<{MARK} on{MARK}=1>",
    f"</script><{MARK}>",
    f'"><{MARK} x="',
    f"'><{MARK} x='",
    f"--><{MARK}>",
    f"]]><{MARK}>",
    f"</style><{MARK}>",
    f"</title></textarea><{MARK}>",
)
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2,
    255,
    2**31,
    2**63,
    -(2**63),
    2**64,
    10**400,
    0.5,
    -1.5,
    1e308,
    -1e308,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1e400",
    "\x00",
    "\ud800",
    "../../escaped",
    "/etc/passwd",
    "é" * 9,
    "9" * 5000,
    [],
    [None],
    [[]],
    {},
    {"a": 1},
    [[1]],
    "__import__('os').system('true')",
)
WORDS = (
    "0",
    "-1",
    "1e400",
    "-1e400",
    "1e-400",
    "nan",
    "inf",
    "99999999999999999999",
    "9" * 4400,
    "0x",
    "''",
    '"',
    "(",
    ")",
    "[" * 300,
    "{" * 300,
    ",",
    ":",
    "=",
    "\n",
    "\t",
    "\\",
    "%",
    "@",
    "#",
    "&a *a",
    "!!python/object:os.system",
    "~",
    "../../escaped",
    "\u202e",
    "\x00",
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
Damage = Callable[[bytes, random.Random], bytes]


def in_bytes(data: bytes, pick: random.Random) -> bytes:
    """One to four of: bits flipped, bytes replaced, cut out, repeated, the end cut off."""
    out = bytearray(data)
    for _ in range(pick.randint(1, 4)):
        at = pick.randrange(len(out) + 1)
        length = min(pick.choice((1, 1, 2, 4, 8, 64)), len(out) - at)
        kind = pick.randrange(6)
        if kind == 0 and length:
            out[at] ^= 1 << pick.randrange(8)
        elif kind == 1:
            out[at : at + length] = pick.randbytes(length)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = out[at : at + length] * pick.choice((1, 2, 100))
        elif kind == 4:
            del out[at:]
        else:
            out[at : at + length] = pick.choice((b"\xff", b"\x00", b"\x7f")) * length
    return bytes(out)


def in_text(data: bytes, pick: random.Random) -> bytes:
    """Numbers replaced by others, lines and pieces moved, doubled or dropped, words put in; now and then bytes."""
    if pick.random() < 0.15:
        return in_bytes(data, pick)
    text = data.decode(errors="replace")
    for _ in range(pick.randint(1, 3)):
        text = _CHANGES[pick.randrange(len(_CHANGES))](text, pick)
    return text.encode(errors="surrogatepass")


def _number(text: str, pick: random.Random) -> str:
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    match = pick.choice(found)
    return text[: match.start()] + pick.choice(WORDS[:9]) + text[match.end() :]


def _line(text: str, pick: random.Random) -> str:
    lines = text.split("\n")
    i, j = pick.randrange(len(lines)), pick.randrange(len(lines))
    kind = pick.randrange(3)
    if kind == 0:
        del lines[i]
    elif kind == 1:
        lines.insert(i, lines[j])
    else:
        lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def _word(text: str, pick: random.Random) -> str:
    at = pick.randrange(len(text) + 1)
    return text[:at] + pick.choice((*WORDS, *MARKUP)) + text[at + pick.choice((0, 0, 1, 5)) :]


def _piece(text: str, pick: random.Random) -> str:
    at, to, size = (pick.randrange(len(text) + 1) for _ in range(3))
    piece = text[at : at + size % 40]
    return text[:to] + piece + text[to + (len(piece) if size % 2 else 0) :]


_CHANGES: tuple[Callable[[str, random.Random], str], ...] = (_number, _line, _word, _piece)


def in_tree(value: Any, pick: random.Random, hostile: tuple[Any, ...] = (*HOSTILE, *MARKUP)) -> Any:
    """The tree with one to three places removed, doubled, renamed, or replaced; it is changed itself."""
    for _ in range(pick.randint(1, 3)):
        owner, key = _place(value, pick)
        if owner is None:
            return _fresh(pick.choice(hostile))
        kind = pick.random()
        if kind < 0.2:
            del owner[key]
        elif kind < 0.3 and isinstance(owner, dict):
            owner[str(pick.choice(hostile))] = owner.pop(key)
        elif kind < 0.35 and isinstance(owner, list):
            owner.extend(owner[key : key + 1] * pick.choice((1, 50)))
        elif kind < 0.4:
            owner[key] = _deep(pick.choice((5, 200, 3000)))
        else:
            owner[key] = _fresh(pick.choice(hostile))
    return value


def _place(value: Any, pick: random.Random) -> tuple[Any, Any]:
    """A container in the tree and one of its keys; deeper is likelier the more there is."""
    owner, key = None, None
    while isinstance(value, dict | list) and value:
        if owner is not None and pick.random() < 0.25:
            break
        owner, key = value, pick.choice(list(value)) if isinstance(value, dict) else pick.randrange(len(value))
        value = owner[key]
    return owner, key


def _fresh(value: Any) -> Any:
    """Its own list or table, for later damage may go into it."""
    return json.loads(json.dumps(value)) if isinstance(value, list | dict) else value


def _deep(levels: int) -> Any:
    found: Any = 0
    for _ in range(levels):
        found = [found]
    return found


def in_json(data: bytes, pick: random.Random) -> bytes:
    """JSON with damage in its tree; now and then in its text."""
    if pick.random() < 0.2:
        return in_text(data, pick)
    return dumped(in_tree(json.loads(data), pick))


def dumped(tree: Any) -> bytes:
    """As JSON, NaN, infinity and lone surrogates included."""
    try:
        return json.dumps(tree).encode()
    except RecursionError:
        return b"[" * 100_000

# SPDX-License-Identifier: Apache-2.0
"""The key of a team: what its members write into shared places is sealed with it, and nothing else is read there.

A digest shows damage; whoever may write the place writes the digest, too. A seal is an HMAC-SHA256 over the name and
the content, so that nobody without the key makes one, or puts one entry in another's place. The key is a file that
TRNLAB_CACHE_KEY names; it is never written anywhere, or passed on a command line.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping

from trnlab.errors import UsageError
from trnlab.files import why
from trnlab.storage import plain_files
from trnlab.storage.opening import expanded

VARIABLE = "TRNLAB_CACHE_KEY"
SEAL_BYTES = 32
_PURPOSE = b"trnlab seal 1\0"
_LEAST, _MOST = 32, 1 << 12  # bytes of a key
_OTHERS = stat.S_IRWXO | stat.S_IWGRP  # who may not read a key, and not write it


class TeamKey:
    """Seals what is written, and tells whether what was read has the seal."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def seal(self, name: str, *parts: bytes | memoryview) -> bytes:
        """The seal of a content under a name, `SEAL_BYTES` long."""
        told = name.encode("utf-8", "surrogateescape")
        made = hmac.new(self._secret, _PURPOSE + len(told).to_bytes(8) + told, hashlib.sha256)
        for part in parts:
            made.update(part)
        return made.digest()

    def fits(self, seal: bytes | memoryview, name: str, *parts: bytes | memoryview) -> bool:
        """Whether this is the seal of the content; takes as long for a wrong one."""
        return hmac.compare_digest(bytes(seal), self.seal(name, *parts))


def team_key(environment: Mapping[str, str] = os.environ) -> TeamKey | None:
    """The key that the environment names, None where it names none.

    Raises UsageError (TRN605) for a file that cannot be read, that others may read or write, or that is no key.
    """
    told = environment.get(VARIABLE)
    if not told:
        return None
    path = expanded(told)
    try:
        with plain_files.opened(path, links=True) as descriptor:
            mode = os.fstat(descriptor).st_mode
        content = plain_files.read(path, most=_MOST, links=True).strip()
    except OSError as error:
        raise _no_key(told, getattr(error, "what", None) or why(error)) from error
    if os.name == "posix" and mode & _OTHERS:
        raise _no_key(told, f"mode {stat.S_IMODE(mode):o}: others may read or write it")
    if len(content) < _LEAST:
        raise _no_key(told, f"{len(content)} bytes")
    return TeamKey(content)


def _no_key(told: str, got: str) -> UsageError:
    return UsageError(
        f"{VARIABLE} names no key: {told}",
        code="TRN605",
        limit=f"a file of {_LEAST} to {_MOST} bytes that only its owner and group read",
        got=got,
        remedy="openssl rand -hex 32 > FILE; chmod 600 FILE; the same file for all who share the cache",
    )

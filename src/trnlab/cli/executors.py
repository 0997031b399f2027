# SPDX-License-Identifier: Apache-2.0
"""`--executor`: machines that work for a command, as Dask's scheduler has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trnlab.errors import UsageError

DASK = "dask://"


@contextmanager
def dask(address: str) -> Iterator[tuple[Any, int]]:
    """A client of a scheduler and how many workers' threads it has. Raises UsageError (TRN178) for what names no
    executor, for one that is not installed or does not answer."""
    if not address.startswith(DASK) or not address.removeprefix(DASK):
        raise refused(f"{address!r} names no executor", "dask://HOST:PORT", address, "name Dask's scheduler")
    try:
        from distributed import Client
    except ImportError as error:
        raise refused(
            "Dask is not installed", "the package distributed", "none", "pip install 'trnlab[distributed]'"
        ) from error
    try:
        client = Client(address.removeprefix(DASK), set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise refused(
            f"no scheduler answers at {address}",
            "a running dask scheduler",
            str(error) or "nothing",
            "start one: dask scheduler; and workers: dask worker HOST:PORT",
        ) from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise refused(
                f"the scheduler at {address} has no workers", "at least 1", 0, f"dask worker {address[len(DASK) :]}"
            )
        yield client, workers


def refused(what: str, limit: object, got: object, remedy: str) -> UsageError:
    """What cannot work for a command."""
    return UsageError(what, code="TRN178", limit=limit, got=got, remedy=remedy)

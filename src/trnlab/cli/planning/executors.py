# SPDX-License-Identifier: Apache-2.0
"""`--jobs` and `--executor`: who compiles for a search."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from trnlab.errors import UsageError
from trnlab.fleet.search.prefetch import CompilePool, processes
from trnlab.runtime.notices import say

DASK = "dask://"


@contextmanager
def helpers(args: argparse.Namespace) -> Iterator[CompilePool | None]:
    """What compiles ahead of a search within the block; None for this process alone.

    Raises UsageError (TRN178) for what names no executor, for one that is not installed or does not answer.
    """
    if args.executor:
        with _dask(args.executor) as found:
            yield found
    elif args.jobs < 1:
        raise _refused(f"--jobs {args.jobs} leaves nobody to compile", "at least 1", args.jobs, "give --jobs 4")
    elif args.jobs == 1:
        yield None
    else:
        with processes(args.jobs) as executor:
            yield CompilePool(executor, args.jobs, say)


@contextmanager
def _dask(address: str) -> Iterator[CompilePool]:
    if not address.startswith(DASK) or not address.removeprefix(DASK):
        raise _refused(f"{address!r} names no executor", "dask://HOST:PORT", address, "name Dask's scheduler")
    try:
        from distributed import Client
    except ImportError as error:
        raise _refused(
            "Dask is not installed", "the package distributed", "none", "pip install 'trnlab[distributed]'"
        ) from error
    try:
        client = Client(address.removeprefix(DASK), set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise _refused(
            f"no scheduler answers at {address}",
            "a running dask scheduler",
            str(error) or "nothing",
            "start one: dask scheduler; and workers: dask worker HOST:PORT",
        ) from error
    with client:
        workers = sum(client.nthreads().values())
        if not workers:
            raise _refused(
                f"the scheduler at {address} has no workers", "at least 1", 0, f"dask worker {address[len(DASK) :]}"
            )
        found = CompilePool(client.get_executor(), workers, say)
        try:
            yield found
        finally:
            found.end()


def _refused(what: str, limit: object, got: object, remedy: str) -> UsageError:
    return UsageError(what, code="TRN178", limit=limit, got=got, remedy=remedy)

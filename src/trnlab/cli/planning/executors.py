# SPDX-License-Identifier: Apache-2.0
"""`--jobs` and `--executor`: who compiles for a search."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from trnlab.cli.executors import dask, refused
from trnlab.fleet.search.prefetch import CompilePool, processes
from trnlab.runtime.notices import say


@contextmanager
def helpers(args: argparse.Namespace) -> Iterator[CompilePool | None]:
    """What compiles ahead of a search within the block; None for this process alone. Raises UsageError (TRN178)."""
    if args.executor:
        with dask(args.executor) as (client, workers):
            found = CompilePool(client.get_executor(), workers, say)
            try:
                yield found
            finally:
                found.end()
    elif args.jobs < 1:
        raise refused(f"--jobs {args.jobs} leaves nobody to compile", "at least 1", args.jobs, "give --jobs 4")
    elif args.jobs == 1:
        yield None
    else:
        with processes(args.jobs) as executor:
            yield CompilePool(executor, args.jobs, say)

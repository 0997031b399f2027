# SPDX-License-Identifier: Apache-2.0
"""`trnlab cache`."""

from __future__ import annotations

import argparse
import os

from trnlab.documents import text
from trnlab.runtime.cache import maintenance as cache_care
from trnlab.runtime.cache import report as cache_report
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.settings import said
from trnlab.storage import Store, open_store


def main(args: argparse.Namespace) -> int:
    """Look into a cache or care for it; returns 1 when `verify` found something damaged, or a copy was refused."""
    cache = Cache(_store(args))
    if args.action == "explain":
        print(text(cache_report.explain(cache, args.subject)))
    elif args.action == "verify":
        found, sound = cache_report.verify(cache)
        print(text(found))
        return 0 if sound else 1
    elif args.action == "prune":
        limits = cache_care.CacheLimits.read(args.size, args.age)
        gone = cache_care.prune(cache, limits, dry_run=args.dry_run)
        print(text(cache_report.pruned(cache, gone, args.dry_run)))
    elif args.action in ("push", "pull"):
        other = Cache(open_store(args.other))
        source, target = (cache, other) if args.action == "push" else (other, cache)
        done = cache_care.copy(source, target, args.keys)
        print(text(cache_report.copied(source, target, done)))
        return 1 if done.damaged else 0
    else:
        print(text(cache_report.listing(cache) if args.action == "ls" else cache_report.clear(cache)))
    return 0


def _store(args: argparse.Namespace) -> Store:
    """The cache that is meant: the one that is named, else one's own of those in the environment."""
    return open_store(getattr(args, "url", None) or said("cache", os.environ, args).split(",")[0])

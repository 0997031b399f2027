# SPDX-License-Identifier: Apache-2.0
"""`trnlab cache`."""

from __future__ import annotations

import argparse
import os

from trnlab.cli import options
from trnlab.documents import text
from trnlab.runtime.cache import maintenance as cache_care
from trnlab.runtime.cache import report as cache_report
from trnlab.runtime.cache.executables import Cache
from trnlab.runtime.settings import said
from trnlab.storage import Store, open_store


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab cache`."""
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, about in (
        ("ls", "list the entries"),
        ("verify", "check every entry to its last byte"),
        ("clear", "remove everything"),
        ("explain", "what made an entry differ from its nearest neighbour"),
        ("prune", "remove what is damaged, old, or was used least recently"),
        ("push", "copy entries of the cache to another one"),
        ("pull", "copy entries of another cache into this one"),
    ):
        action = actions.add_parser(name, help=about)
        if name == "explain":
            action.add_argument("subject", metavar="KEY_OR_SCRIPT", help="start of a key, or the path of a script")
        elif name in ("push", "pull"):
            action.add_argument("other", metavar="URL", help="the other cache: a folder, or such as s3://team/cache")
            action.add_argument("keys", metavar="KEY", nargs="*", help="starts of keys; default: all that is sound")
        else:
            action.add_argument("url", metavar="URL", nargs="?", help="a folder, or such as s3://team/cache")
        if name == "prune":
            action.add_argument("--size", metavar="BYTES", help="how much may stay, such as 20GiB")
            action.add_argument(
                "--age", metavar="TIME", help="how long something may stay unused, such as 30d or 12h"
            )
            action.add_argument("--dry-run", action="store_true", help="only say what would go")
        options.cache(action, "")


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

# SPDX-License-Identifier: Apache-2.0
"""`trnlab cache`."""

from __future__ import annotations

import argparse
import os

from trnlab.runtime import cache_report
from trnlab.runtime.cache import Cache
from trnlab.runtime.session import cache_folder


def main(args: argparse.Namespace) -> int:
    """List, verify, clear or explain; returns 1 when `verify` found something damaged."""
    cache = Cache(args.cache or cache_folder(os.environ))
    if args.action == "explain":
        print(cache_report.explain(cache, args.subject))
        return 0
    if args.action == "verify":
        text, sound = cache_report.verify(cache)
        print(text)
        return 0 if sound else 1
    print(cache_report.listing(cache) if args.action == "ls" else cache_report.clear(cache))
    return 0

# SPDX-License-Identifier: Apache-2.0
"""`trnlab compare`."""

from __future__ import annotations

import argparse

from trnlab import documents, profile


def main(args: argparse.Namespace) -> int:
    """Say what changed from one run to the other."""
    first, second = (profile.open_run(path) for path in (args.first, args.second))
    found = profile.comparison.document(profile.compare(first, second), (first, second))
    print(found.json() if args.json else documents.text(found))
    if args.page:
        profile.write(args.page, documents.page(found).encode())
        if not args.json:
            print(f"\npage  {args.page}")
    return 0

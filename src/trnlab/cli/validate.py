# SPDX-License-Identifier: Apache-2.0
"""`trnlab validate`."""

from __future__ import annotations

import argparse

from trnlab.errors import UsageError
from trnlab.validation import load, report, to_json, validate


def main(args: argparse.Namespace) -> int:
    """Compare predictions with all measurements, or with some of them."""
    wanted = args.only or ""
    chosen = [m for m in load() if wanted in m.name or wanted in m.kernel]
    if not chosen:
        raise UsageError(
            f"no measurement is called {wanted!r}", code="TRN126", limit="; ".join(m.name for m in load()),
            remedy="give a part of one of these names",
        )  # fmt: skip
    results = validate(chosen)
    print(to_json(results) if args.json else report(results))
    return 0

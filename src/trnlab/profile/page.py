# SPDX-License-Identifier: Apache-2.0
"""report.html: one page that needs nothing but itself, pictures first."""

from __future__ import annotations

from trnlab.profile.data import Profile


def page(profile: Profile) -> str:
    """The page."""
    return "<!doctype html>"

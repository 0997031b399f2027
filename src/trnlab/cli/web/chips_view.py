# SPDX-License-Identifier: Apache-2.0
"""Chips and instances with all their figures, as `trnlab chips` knows them."""

from __future__ import annotations

from collections.abc import Mapping

from trnlab import chips as known
from trnlab.chips.render import figures_document, overview_document
from trnlab.cli.web.shell import View, address, choice, form
from trnlab.cli.web.site import ServedSite


def chips(site: ServedSite, asked: Mapping[str, str]) -> View:
    """All chips, or the figures of one with how each is known and where from."""
    name, only = asked.get("chip", ""), asked.get("assumed", "")
    options = [("", "all"), *((each, each) for each in known.NAMES)]
    fields = [
        choice("chip", "Chip", name, options),
        choice("assumed", "Figures", only, [("", "all"), ("yes", "only those that are assumed")]),
    ]
    if not name:
        document = overview_document(lambda chip: address("/chips", {"chip": chip}))
    else:
        document = figures_document(known.get(name), only_assumed=bool(only))
    return View.of(document, before=form("/chips", fields, data_live="yes"), here="/chips")

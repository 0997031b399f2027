# SPDX-License-Identifier: Apache-2.0
"""The compile cache and checkpoints, as `trnlab cache` and `trnlab checkpoint` list them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trnlab.cli.stores import checkpoint
from trnlab.cli.web.folders import called, named, walked
from trnlab.cli.web.shell import View, address, choice, form
from trnlab.cli.web.site import ServedSite
from trnlab.documents import Document, Note, Section, Table
from trnlab.runtime.cache import report
from trnlab.runtime.cache.executables import Cache
from trnlab.storage import open_store
from trnlab.storage.checkpoints import BEGUN, Checkpoints

_STEP = re.compile(r"step_\d+")
Asked = Mapping[str, str]


def cache(site: ServedSite, asked: Asked) -> View:
    """The entries, or why one was compiled."""
    store = Cache(open_store(site.cache), writable=False)
    key = asked.get("key", "")
    if key:
        back = '<p class="ways"><a href="/cache">All entries</a></p>'
        return View.of(report.explain(store, key), before=back, here="/cache")
    return View.of(report.listing(store, lambda key: address("/cache", {"key": key})), here="/cache")


def checkpoints(site: ServedSite, asked: Asked) -> View:
    """Places with checkpoints, or those of one."""
    found = _places(site)
    name = asked.get("place", "")
    if not name:
        rows = [(place, str(folder)) for place, folder in found.items()]
        links = [address("/checkpoints", {"place": place}) for place in found]
        none = Note(f"there are no checkpoints below {', '.join(map(str, site.folders))}", loud=True)
        parts = [Table(rows, ("place", "folder"), links=links)] if rows else [none]
        document = Document("Checkpoints", [Section(heading="Places", parts=parts)], over="trnlab checkpoint")
        return View.of(document, here="/checkpoints")
    folder = named(found, name, "are no checkpoints", f"{len(found)} places", "them")
    fields = [choice("place", "Place", name, [("", "all"), *((each, each) for each in found)])]
    document = checkpoint.listing(Checkpoints(open_store(str(folder))))
    return View.of(document, before=form("/checkpoints", fields, data_live="yes"), here="/checkpoints")


def _places(site: ServedSite) -> dict[str, Path]:
    """Folders that hold steps of checkpoints."""
    found = {}
    for root in site.folders:
        for folder, names in walked(root):
            if BEGUN in names and _STEP.fullmatch(folder.name) and folder != root:
                found[called(folder.parent, root, site.folders)] = folder.parent
    return found

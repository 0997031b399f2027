# SPDX-License-Identifier: Apache-2.0
"""What pages name in words becomes a link: `docs/plan.md`, ADR 98, TRN120. A page that is not there is a warning."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
ERRORS = "docs/errors"
_PAGE = re.compile(r"(?:docs/[\w/.-]+|[A-Z]+)\.md")
_NAMED = re.compile(r"\bADR (?P<adr>\d{1,3})\b|\b(?P<code>TRN\d{3})\b")
_LEFT = (nodes.reference, nodes.literal_block, nodes.title)  # what stays as it is


class NamedPages(SphinxPostTransform):
    """Links where text names a page, a decision or an error."""

    default_priority = 900

    def run(self, **_: Any) -> None:
        """Go through one page."""
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            if _PAGE.fullmatch(text) and text != "README.md" and not _within(literal):
                self._named_page(literal, text.removesuffix(".md"))
        for text in list(self.document.findall(nodes.Text)):
            if not _within(text) and not isinstance(text.parent, nodes.literal):
                self._words(text)

    def _named_page(self, literal: nodes.literal, name: str) -> None:
        if name not in self.env.found_docs:
            logging.getLogger(__name__).warning("no page %r", name, location=literal)
            return
        link = self._link(name)
        literal.replace_self(link)
        link += literal

    def _words(self, text: nodes.Text) -> None:
        parts: list[nodes.Node] = []
        at = 0
        for found in _NAMED.finditer(text):
            target = self._target(found["adr"], found["code"])
            if target is not None:
                parts += [nodes.Text(text[at : found.start()]), target]
                target += nodes.Text(found[0])
                at = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[at:])])

    def _target(self, adr: str | None, code: str | None) -> nodes.reference | None:
        if code is not None:
            known = code in self.config.trnlab_codes and self.env.docname != ERRORS
            return self._link(ERRORS, code.lower()) if known else None
        pages = [name for name in self.env.found_docs if name.startswith(f"docs/adr/{int(adr or 0):04}-")]
        return self._link(pages[0]) if pages else None

    def _link(self, name: str, anchor: str = "") -> nodes.reference:
        place = self.app.builder.get_relative_uri(self.env.docname, name)
        return nodes.reference("", "", internal=True, refuri=f"{place}#{anchor}" if anchor else place)


def _within(node: nodes.Node) -> bool:
    """Whether a node lies in something that stays as it is."""
    while node is not None:
        if isinstance(node, _LEFT):
            return True
        node = node.parent
    return False


def setup(app: Any) -> dict[str, bool]:
    """What Sphinx calls."""
    codes = re.findall(r"^### (TRN\d{3})$", (ROOT / f"{ERRORS}.md").read_text(), re.MULTILINE)
    app.add_config_value("trnlab_codes", codes, "env", frozenset({list}))
    app.add_post_transform(NamedPages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

# SPDX-License-Identifier: Apache-2.0
"""The instructions of a NeuronCore, as `trnlab isa` shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trnlab.cli.kernels.isa import listed, text_of
from trnlab.cli.web.shell import View, address, field, form
from trnlab.cli.web.site import ServedSite
from trnlab.documents import Document, Section, Table
from trnlab.quoting import markup as escape

_LINE = re.compile(r"^( {4}|- |#+ )?(.*)$")
_TAGS = {"    ": "pre", "- ": "ul", "": "p"}


def instructions(site: ServedSite, asked: Mapping[str, str]) -> View:
    """All of them, those with a word, or the page of one."""
    name = asked.get("name", "")
    if name:
        back = '<p class="ways"><a href="/instructions">All instructions</a></p>'
        return View(name, f"{back}<section>{marked(text_of(name))}</section>", here="/instructions")
    word = asked.get("q", "").lower()
    found = [row for row in listed() if word in row[1].lower()]
    rows = [(each, opcode, signature) for opcode, each, signature in found]
    links = [address("/instructions", {"name": each}) for each, *_ in rows]
    table = Table(rows, ("instruction", "opcode", "call"), (1,), links=links)
    listing = Section(heading=f"{len(rows)} instructions", parts=[table])
    document = Document("Instructions", [listing], over="trnlab isa")
    fields = [field("q", "Search", asked.get("q", ""), "search", placeholder="matmul, dma, rng")]
    return View.of(document, before=form("/instructions", fields, data_live="yes"), here="/instructions")


def marked(text: str) -> str:
    """HTML of the headings, lists, code and paragraphs that pages of instructions are made of."""
    return "".join(_block(kind, lines) for kind, lines in _blocks(text))


def _blocks(text: str) -> Iterator[tuple[str, list[str]]]:
    """Lines of one kind that stand together; a heading stands alone."""
    kind, lines = "", list[str]()
    for line in [*text.split("\n"), ""]:
        found = _LINE.match(line)
        assert found is not None
        mark, rest = found[1] or "", found[2]
        if lines and (mark != kind or not line or mark.startswith("#")):
            yield kind, lines
            lines = []
        if line:
            kind = mark
            lines.append(rest)


def _block(kind: str, lines: list[str]) -> str:
    told = [re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(line)) for line in lines]
    if kind.startswith("#"):
        level = min(len(kind.strip()), 3)
        return f"<h{level}>{told[0]}</h{level}>"
    tag = _TAGS[kind]
    inner = "".join(f"<li>{line}</li>" for line in told) if tag == "ul" else "\n".join(told)
    return f"<{tag}>{inner}</{tag}>"

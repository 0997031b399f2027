# SPDX-License-Identifier: Apache-2.0
"""The page around a view: its head, the way to the other views, and what stands where something went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from trnlab import documents
from trnlab.documents import Document
from trnlab.documents.html import frame
from trnlab.errors import TrnlabError
from trnlab.quoting import markup as escape

NAVIGATION = (
    ("/runs", "Runs"),
    ("/compare", "Compare"),
    ("/plan", "Plan"),
    ("/serve-plan", "Serving"),
    ("/bakeoff", "Bake-off"),
    ("/goodput", "Goodput"),
    ("/kernels", "Kernels"),
    ("/tune", "Tune"),
    ("/cache", "Cache"),
    ("/checkpoints", "Checkpoints"),
    ("/chips", "Chips"),
    ("/instructions", "Instructions"),
)
_HEAD = """\
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/assets/report.css">
<link rel="stylesheet" href="/assets/ui.css">"""
_BODY = """\
<a class="skip" href="#content">Skip to the content</a>
<nav aria-label="views">{links}</nav>
<main id="content" tabindex="-1">
{body}
</main>
{scripts}"""


@dataclass(frozen=True)
class View:
    """What a view shows."""

    title: str  # of the window
    body: str  # HTML
    scripts: Sequence[str] = ()  # names of files in the assets, in their order
    status: int = 200
    here: str = ""  # the entry of the navigation that it belongs to

    @staticmethod
    def of(document: Document, before: str = "", after: str = "", here: str = "", more: Sequence[str] = ()) -> View:
        """A document with HTML before and after it. more: scripts beside its own."""
        return View(
            document.name or document.title,
            f"{before}{documents.body(document)}{after}",
            [*(script.name for script in document.scripts), *more],
            here=here,
        )


def page(view: View) -> str:
    """The whole page."""
    links = "".join(f'<a href="{path}"{_current(path == view.here)}>{escape(name)}</a>' for path, name in NAVIGATION)
    scripts = [f'<script defer src="/assets/{escape(name)}"></script>' for name in dict.fromkeys(view.scripts)]
    scripts.append('<script type="module" src="/assets/ui.js"></script>')
    return frame(view.title, _HEAD, _BODY.format(links=links, body=view.body, scripts="\n".join(scripts)))


def plain(code: str, what: str, remedy: str) -> str:
    """A page without the others, for who has no access."""
    return frame(code, "", f"<h1>{escape(code)}</h1><p>{escape(what)}.</p><p>{escape(remedy)}.</p>")


def trouble(error: TrnlabError) -> str:
    """An error as it teaches: what, limit, value, the way out."""
    told = (("limit", error.limit), ("got", error.got), ("chip", error.chip), ("do", error.remedy))
    rows = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in told if value is not None)
    head = f"<b>{escape(error.code)}</b> {escape(error.what)}"
    return f'<div class="trouble" role="alert"><p>{head}</p><dl class="keys">{rows}</dl></div>'


def address(path: str, asked: Mapping[str, str], **other: str) -> str:
    """The address of a view with these parameters, those that are empty left out."""
    said = urlencode({name: value for name, value in {**asked, **other}.items() if value})
    return f"{path}?{said}" if said else path


def field(name: str, label: str, value: str, kind: str = "text", **more: str) -> str:
    """A field of a form. more: attributes."""
    said = "".join(f' {key}="{escape(told)}"' for key, told in more.items())
    return (
        f'<label>{escape(label)}<input type="{kind}" name="{escape(name)}" value="{escape(value)}" '
        f'autocomplete="off" spellcheck="false"{said}></label>'
    )


def choice(name: str, label: str, value: str, options: Sequence[tuple[str, str]]) -> str:
    """A choice of a form: (value, how it is called)."""
    told = "".join(
        f'<option value="{escape(key)}"{" selected" if key == value else ""}>{escape(text)}</option>'
        for key, text in options
    )
    return f'<label>{escape(label)}<select name="{escape(name)}">{told}</select></label>'


def slider(name: str, label: str, value: str, kind: str, least: int, most: int, otherwise: str = "") -> str:
    """A field with a slider beneath, which a script keeps together; without scripts the field is all. otherwise: what
    is taken where nothing is said."""
    told = f'data-slider="{kind}" data-least="{least}" data-most="{most}"'
    return (
        f'<label>{escape(label)}<input name="{name}" value="{escape(value)}" placeholder="{escape(otherwise)}" '
        f'autocomplete="off" {told}></label>'
    )


def form(path: str, fields: Sequence[str], button: str = "Show", **more: str) -> str:
    """A form that leads to an address. more: attributes."""
    said = "".join(f' {key.replace("_", "-")}="{escape(told)}"' for key, told in more.items())
    return (
        f'<form class="asking" action="{path}" method="get"{said}>{"".join(fields)}'
        f"<button>{escape(button)}</button></form>"
    )


def _current(is_here: bool) -> str:
    return ' aria-current="page"' if is_here else ""

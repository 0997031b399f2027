# SPDX-License-Identifier: Apache-2.0
"""HTML of the pieces of a page: sections, tables, bars, keys of colours, and the page around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable

from trnlab.quoting import markup as escape

STYLE = files(__package__).joinpath("assets", "report.css")
_FRAME = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name} · trnlab</title>
{head}
</head>
<body>
{body}
</body>
</html>
"""


def frame(name: str, head: str, body: str) -> str:
    """A whole page, of a window of that name. head, body: HTML."""
    return _FRAME.format(name=escape(name), head=head, body=body)


def document(name: str, body: str, scripts: Iterable[Traversable] = ()) -> str:
    """A whole page around the body, with the style and the scripts that its drawings need."""
    script = "".join(file.read_text("utf-8") for file in scripts)
    style = f"<style>\n{STYLE.read_text('utf-8')}</style>"
    return frame(name, style, f"<main>\n{body}\n</main>\n<script>\n{script}</script>")


def section(title: str, say: str, content: str, style: str = "") -> str:
    """A panel of the page; a "broad" one takes the width of the window."""
    opened = f'<section class="{style}">' if style else "<section>"
    return f"{opened}\n<h2>{escape(title)}</h2>\n{paragraph('say', say)}{content}\n</section>"


def paragraph(style: str, text: str) -> str:
    """Nothing where there is no text."""
    return f'<p class="{style}">{escape(text)}</p>' if text else ""


def notice(text: str) -> str:
    """A paragraph that is set apart."""
    return f'<p class="notice"><b>{escape(text)}</b></p>' if text else ""


def stack(shares: Iterable[tuple[str, str, float]]) -> str:
    """One bar of several parts: (title, colour, share of the bar)."""
    parts = [
        f'<i style="--of:{colour};width:{share:.3%}" title="{escape(title)}"></i>' for title, colour, share in shares
    ]
    return f'<div class="stack">{"".join(parts)}</div>'


def key(entries: Iterable[tuple[str, str, str]]) -> str:
    """What the colours mean: (name, colour, value)."""
    parts = [
        f'<span style="--of:{colour}">{escape(name)} <b>{escape(value)}</b></span>' for name, colour, value in entries
    ]
    return f'<div class="key">{"".join(parts)}</div>'


def bars(rows: Iterable[tuple[str, str, str]], style: str = "") -> str:
    """Rows of (name, a bar from `stack` or `track`, value)."""
    cells = [
        f'<div class="name" title="{escape(name)}">{escape(name)}</div>{bar}<div class="value">{escape(value)}</div>'
        for name, bar, value in rows
    ]
    return f'<div class="bars {style}">{"".join(cells)}</div>'


def track(share: float, colour: str) -> str:
    """A bar of one part, on its track."""
    return f'<div class="track"><i style="--of:{colour};width:{min(share, 1):.3%}"></i></div>'


def ranges(rows: Sequence[tuple[str, float, float, float | None]], told: Callable[[float], str]) -> str:
    """Rows of (name, low, high, middle or None) on one logarithmic scale."""
    least = math.log(min(low for _, low, _, _ in rows))
    wide = max(math.log(max(high for _, _, high, _ in rows)) - least, 1e-9)

    def at(value: float) -> float:
        return (math.log(value) - least) / wide * 100

    parts = []
    for name, low, high, middle in rows:
        left, right = at(low), at(high)
        mark = "" if middle is None else f'<b style="left:{at(middle):.2f}%"></b>'
        ends = f"{escape(told(low))} to {escape(told(high))}"
        text = f"<small>{ends}</small>" if middle is None else f"{escape(told(middle))} <small>({ends})</small>"
        bar = f'<i style="left:{left:.2f}%;width:{max(right - left, 0.4):.2f}%"></i>{mark}'
        parts.append(f'<div>{escape(name)}</div><div class="line">{bar}</div><div class="value">{text}</div>')
    return f'<div class="ranges">{"".join(parts)}</div>'


def swings(rows: Sequence[tuple[str, float, float, str]]) -> str:
    """Rows of (name, change with less, change with more, why), to both sides of the middle."""
    most = max((abs(change) for _, less, more, _ in rows for change in (less, more)), default=0.0) or 1.0
    parts = []
    for name, less, more, why in rows:
        line = "".join(_swing(change / most * 48, colour) for change, colour in ((less, "scalar"), (more, "accent")))
        parts.append(
            f'<div title="{escape(why)}">{escape(name)}</div><div class="line">{line}</div>'
            f'<div class="value">{less:+.1%} / {more:+.1%}</div>'
        )
    return f'<div class="swings">{"".join(parts)}</div>'


def _swing(share: float, colour: str) -> str:
    """A bar from the middle on; share: in percent of the width."""
    left, width = 50 + min(share, 0.0), abs(share)
    return f'<i style="left:{left:.2f}%;width:{width:.2f}%;background:var(--{colour})"></i>'


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Iterable[int] = (), links: Sequence[str] = ()
) -> str:
    """A table of texts; `numbers` are the columns that are set to the right; links: of each row, where its first cell
    leads to. The last cell of a row that is shorter than others spans what is left."""
    right, columns = set(numbers), max(map(len, (head, *rows)), default=0)

    def line(cells: Sequence[str], tag: str, link: str = "") -> str:
        told = list(map(escape, cells))
        if link and told:
            told[0] = f'<a href="{escape(link)}">{told[0]}</a>'
        styles = [' class="number"' if i in right else "" for i in range(len(cells))]
        if cells and len(cells) < columns:
            styles[-1] = f' colspan="{columns - len(cells) + 1}"'
        return f"<tr>{''.join(f'<{tag}{s}>{cell}</{tag}>' for s, cell in zip(styles, told))}</tr>"

    top = line(head, "th") if head else ""
    leads = [*links, *[""] * (len(rows) - len(links))]
    return f'<div class="scroll"><table>{top}{"".join(map(line, rows, ["td"] * len(rows), leads))}</table></div>'


def first_up(text: str) -> str:
    """With a capital at its beginning."""
    return text[:1].upper() + text[1:]


def sentence(text: str) -> str:
    """With a capital at its beginning and a full stop at its end."""
    said = first_up(text.strip())
    return said if said.endswith((".", ":", "!", "?")) else f"{said}."

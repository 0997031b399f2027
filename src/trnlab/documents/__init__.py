# SPDX-License-Identifier: Apache-2.0
"""A result as a document: sections of tables, bars, curves and notes, for the terminal, as a page and as JSON."""

from trnlab.documents.charts import Area, Curve
from trnlab.documents.model import (
    BOTH,
    PAGE,
    TERMINAL,
    Bar,
    Bars,
    CurveChart,
    Document,
    Drawing,
    HeadlineFigure,
    Key,
    Later,
    Note,
    Part,
    Section,
    Slice,
    SplitBar,
    Table,
)
from trnlab.documents.terminal import blocks, text
from trnlab.documents.web import page

__all__ = [
    "BOTH",
    "PAGE",
    "TERMINAL",
    "Area",
    "Bar",
    "Bars",
    "Curve",
    "CurveChart",
    "Document",
    "Drawing",
    "HeadlineFigure",
    "Key",
    "Later",
    "Note",
    "Part",
    "Section",
    "Slice",
    "SplitBar",
    "Table",
    "blocks",
    "page",
    "text",
]

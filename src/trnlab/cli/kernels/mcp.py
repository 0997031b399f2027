# SPDX-License-Identifier: Apache-2.0
"""`trnlab mcp`."""

from __future__ import annotations

import argparse
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import trnlab
from trnlab.bench import laboratory
from trnlab.errors import UsageError

TOOLS = (
    laboratory.judge,
    laboratory.compare,
    laboratory.explain,
    laboratory.ideas,
    laboratory.lint,
    laboratory.instruction,
    laboratory.rules,
    laboratory.tune,
)
_TEXTS = ("kernel", "kernels", "reference")  # arguments that are sources, or paths of files
_ABOUT = (
    "A laboratory for kernels of AWS Trainium in NKI: whether a kernel is right, how long it takes on the chip, why, "
    "and what would help. A kernel is given as source, or as the path of a file in the folder that this server was "
    "started in. Begin with `judge`; each answer ends in the next step."
)


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab mcp`."""
    command.add_argument("--folder", metavar="DIR", type=Path, default=Path(), help="whose files may be named")


def main(args: argparse.Namespace) -> int:
    """Serve until the client goes, over standard input and output."""
    server(args.folder.resolve()).run("stdio")
    return 0


def server(folder: Path) -> Any:
    """The server, of the protocol's own SDK. folder: whose files requests may name. Raises UsageError (TRN848)."""
    try:
        from mcp.server import MCPServer
    except ImportError as error:
        raise UsageError(
            "the SDK of the Model Context Protocol is not installed",
            code="TRN848",
            limit="the package mcp, 2 or later",
            remedy="pip install 'trnlab[mcp]'",
        ) from error
    made = MCPServer("trnlab", instructions=_ABOUT, version=trnlab.__version__)
    for tool in TOOLS:
        made.tool()(_within(tool, folder))
    return made


def _within(tool: Callable[..., dict[str, Any]], folder: Path) -> Callable[..., dict[str, Any]]:
    """The tool, for sources and for files of a folder alone."""
    names = inspect.signature(tool)

    @functools.wraps(tool)
    def called(*args: Any, **kwargs: Any) -> dict[str, Any]:
        for name, value in names.bind(*args, **kwargs).arguments.items():
            texts = [] if name not in _TEXTS or value is None else [value] if isinstance(value, str) else value
            for text in texts:
                if not laboratory.is_source(text) and not _inside(text, folder):
                    return {
                        "error": "TRN840: this server reads no such file",
                        "got": text,
                        "limit": str(folder),
                        "do": "give the source itself, or the path of a file in that folder",
                    }
        return tool(*args, **kwargs)

    return called


def _inside(text: str, folder: Path) -> bool:
    path = text.rpartition(":")[0] or text
    return any(Path(each).resolve().is_relative_to(folder) and Path(each).is_file() for each in (path, text))

# SPDX-License-Identifier: Apache-2.0
"""`trnlab ui`."""

from __future__ import annotations

import argparse
from pathlib import Path

from trnlab.cli import options
from trnlab.errors import UsageError

PORT = 7317


def arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `trnlab ui`."""
    command.add_argument(
        "folders",
        metavar="DIR",
        type=Path,
        nargs="*",
        default=[Path()],
        help="where runs, benches and kernels lie; default: this folder",
    )
    command.add_argument(
        "--port",
        type=options.whole(0, 65535),
        default=PORT,
        metavar="N",
        help=f"of this host; 0: any that is free; default: {PORT}",
    )
    options.cache(command, "")


def main(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(
                f"there is no folder {str(folder)!r}",
                code="TRN851",
                got=str(folder),
                limit="folders in which runs, benches and kernels lie",
                remedy="name the folder in which you called `trnlab run`",
            )
    try:
        from trnlab.cli.web import serving
    except ImportError as error:
        raise UsageError(
            "the packages that serve pages are not installed",
            code="TRN850",
            got=f"no {error.name}",
            limit="the packages starlette and uvicorn",
            remedy="pip install 'trnlab[ui]'",
        ) from error
    return serving.serve(args)

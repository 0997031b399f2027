# SPDX-License-Identifier: Apache-2.0
"""What a server of pages knows: folders, the cache, its token, and the processes that work for it."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from pathlib import Path

from trnlab.cli.web.folders import FoundRuns
from trnlab.cli.web.jobs import Workplace
from trnlab.runtime.settings import said


@dataclass
class ServedSite:
    """One server."""

    folders: tuple[Path, ...]  # where runs, benches and kernels lie
    cache: str  # the compile cache, as --cache names it
    token: str
    port: int
    runs: FoundRuns = field(init=False)
    work: Workplace = field(default_factory=Workplace)

    def __post_init__(self) -> None:
        self.runs = FoundRuns(self.folders)

    @staticmethod
    def of(args: argparse.Namespace, token: str, port: int) -> ServedSite:
        """As the command line says."""
        folders = tuple(folder.resolve() for folder in args.folders)
        return ServedSite(folders, said("cache", os.environ, args).split(",")[0], token, port)

    @property
    def cookie(self) -> str:
        """Name of the cookie; ports of one host share their cookies."""
        return f"trnlab-{self.port}"

    def close(self) -> None:
        """End what works for it."""
        self.work.close()

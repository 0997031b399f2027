# SPDX-License-Identifier: Apache-2.0
"""What a command answered, kept by all that its answer hangs on, so that the same question imports no planner."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trnlab.runtime.settings import kept_folder
from trnlab.sources import package_digest
from trnlab.storage.content import ContentStore

FOLDER = "answers"  # in the cache
MINE = Path("validation", "mine.json")  # in the cache: a user's own runs, of which bands are made
HOW = ("cache", "no_cache", "jobs", "executor", "json")  # options that change no answer
READ = ("TRNLAB_", "NEURON_", "XLA_")  # beginnings of variables that may change one
PLACES = ("TRNLAB_CACHE", "TRNLAB_LIVE")  # those that say where something is kept


@dataclass(frozen=True)
class Answers:
    """Where the answer of a command lies. file: None where it is not kept."""

    store: ContentStore
    file: Path | None

    @staticmethod
    def of(args: argparse.Namespace, name: str, files: Sequence[str | None], passing: Sequence[str]) -> Answers:
        """files: arguments that may name a file, whose content counts. passing: options with which there is more to
        do than to print, so that nothing is kept."""
        cache = None if args.no_cache or any(getattr(args, option) for option in passing) else kept_folder(args)
        store = ContentStore(None if cache is None else cache / FOLDER)
        if cache is None:
            return Answers(store, None)
        asked = {key: value for key, value in vars(args).items() if key not in HOW}
        said = {key: os.environ[key] for key in os.environ if key.startswith(READ) and key not in PLACES}
        read = [_digest(Path(file)) for file in files if file] + [_digest(cache / MINE)]
        return Answers(store, store.file([name, asked, said, read, package_digest()], prefix=f"{name}-"))

    def known(self) -> dict[str, str] | None:
        """The answer by form; None where it is not there."""
        return self.store.record(self.file)

    def keep(self, **forms: str) -> dict[str, str]:
        """Keep an answer by form; returns it."""
        self.store.write_record(self.file, forms)
        return forms


def _digest(file: Path) -> str:
    """What tells the content of a file from others; "" where there is none."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""

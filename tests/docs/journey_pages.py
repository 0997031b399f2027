# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/journeys as commands: every `sh` block is commands of trnlab, followed by what they print.

    python tests/docs/journey_pages.py NAME ...     # runs the commands of pages, and writes what they print

Real sizes take minutes, so that the suite runs each page at a small one: a comment after the output gives the same
commands on `small.json` or `small_images.json`, and what their output has to say.

    <!-- small
    trnlab plan small.json --tokens 1G --target trn1.2xlarge
    says: step; memory of a rank
    -->
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from trnlab.cli.main import main

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "journeys"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))
_BLOCK = re.compile(
    r"^```sh\n(?P<real>.*?)^```\n+```output\n(?P<shown>.*?)^```\n+<!-- small\n(?P<small>.*?)says: (?P<says>.*?)\n-->",
    re.MULTILINE | re.DOTALL,
)
SMALL = {
    "small.json": {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "vocab_size": 512,
        "max_position_embeddings": 128,
    },
    "small_images.json": {
        "model_type": "vit",
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 2,
        "intermediate_size": 256,
        "image_size": 32,
        "patch_size": 8,
        "num_labels": 10,
    },
}


@dataclass(frozen=True)
class Block:
    """real: commands as the page shows them, whose output is `shown`, at `span` of the page; small: those that the
    suite runs; says: what their output has to have."""

    real: list[str]
    shown: str
    span: tuple[int, int]
    small: list[str]
    says: list[str]


def blocks(text: str) -> Iterator[Block]:
    """Of a page."""
    for found in _BLOCK.finditer(text):
        yield Block(
            _commands(found["real"]),
            found["shown"],
            found.span("shown"),
            _commands(found["small"]),
            [part.strip() for part in found["says"].split(";")],
        )


def _commands(text: str) -> list[str]:
    joined = text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def arguments(command: str) -> list[str]:
    """Of trnlab."""
    name, *rest = shlex.split(command)
    assert name == "trnlab", command
    return rest


def run(commands: list[str], folder: Path) -> str:
    """What commands print, in a folder that has the small models."""
    for name, config in SMALL.items():
        (folder / name).write_text(json.dumps(config))
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed), redirect_stderr(io.StringIO()) as told:
        for command in commands:
            assert main(arguments(command)) == 0, f"{command}: {told.getvalue()}"
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines()) + "\n"


def rewrite(page: Path, folder: Path) -> None:
    """Put what the real commands print now into the page."""
    text = page.read_text()
    for block in reversed(list(blocks(text))):
        text = text[: block.span[0]] + run(block.real, folder) + text[block.span[1] :]
    page.write_text(text)


if __name__ == "__main__":
    import tempfile

    os.environ.setdefault("TRNLAB_CACHE", str(Path(tempfile.gettempdir()) / "journeys"))
    for chosen in [page for page in PAGES if page.stem in sys.argv[1:] or len(sys.argv) == 1]:
        with tempfile.TemporaryDirectory() as folder:
            rewrite(chosen, Path(folder))

# SPDX-License-Identifier: Apache-2.0
"""Which files of tests reach which lines, and what they cost, as coverage and the plugin found."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reached:
    """`tests`: files of tests by (file, line) of the package. `costs`: processor seconds of each file of tests."""

    tests: dict[tuple[str, int], tuple[str, ...]]
    costs: dict[str, float]

    def order(self, file: str, line: int) -> list[str]:
        """Files of tests that reach a line: those of the same package first, then by what they cost."""
        parts = file.split("/")[1:-1]

        def apart(test: str) -> int:
            shared = [a == b for a, b in zip(parts, test.split("/")[1:-1])]
            return -sum(shared[: shared.index(False)] if False in shared else shared)

        found = self.tests.get((file, line), ())
        return sorted(found, key=lambda test: (apart(test), self.costs.get(test, 0.0), test))


def read(path: Path) -> Reached:
    """What `keep` wrote."""
    kept = json.loads(path.read_text())
    names = kept["names"]
    tests = {
        (file, int(line)): tuple(names[i] for i in found)
        for file, lines in kept["lines"].items()
        for line, found in lines.items()
    }
    return Reached(tests, kept["costs"])


def keep(data: Path, costs: Path, to: Path) -> None:
    """From coverage's data file, whose contexts are files of tests, and the lines `seconds test` of the plugin."""
    import coverage

    found = coverage.CoverageData(str(data))
    found.read()
    numbers: dict[str, int] = {}
    lines: dict[str, dict[int, list[int]]] = {}
    for path in sorted(found.measured_files()):
        reached = {}
        for line, contexts in found.contexts_by_lineno(path).items():
            files = {
                part.split("::")[0]
                for context in contexts
                for part in context.split("|")
                if part.startswith("tests/")
            }
            reached[line] = sorted(numbers.setdefault(name, len(numbers)) for name in files)
        lines["trnlab/" + path.rpartition("/trnlab/")[2]] = reached
    spent: dict[str, float] = defaultdict(float)
    for entry in costs.read_text().splitlines():
        seconds, test = entry.split(maxsplit=1)
        spent[test.split("::")[0]] += float(seconds)
    to.write_text(json.dumps({"names": list(numbers), "lines": lines, "costs": spent}))

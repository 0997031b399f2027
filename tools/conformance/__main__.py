# SPDX-License-Identifier: Apache-2.0
"""Run kernels that nobody here wrote, from a checkout on this machine, and print what became of each.

    python tools/conformance PATH [--only TEXT] [--timeout SECONDS]
    python tools/conformance --library PATH [-k TEXT] [--folder core/qkv] [--timeout SECONDS] [--memory GIB]
                              [--most N] [--results FILE]

PATH is a checkout of aws-neuron/nki-samples, or the folder nki/ of aws-neuron/aws-neuron-sdk. Three kinds of files
are run, each in a process of its own with the imports of kernels resolved to trnlab:

    scripts   files with a main part
    tests     test_*.py, by pytest; each test is a line
    cases     kernels without a runner of their own, with inputs and a NumPy reference from `cases.py`

A line is "passed", "failed" (it ran and was wrong, or broke), or "refused" (the file needs a package or a file that
is not here, or a feature that trnlab says it does not simulate). What must fail and does, passes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent
RUNNER = HERE / "run_one.py"
sys.path.insert(0, str(HERE))

import cases  # noqa: E402
import library  # noqa: E402

NOT_RUN = ("setup", "conf", "integration", "api", "_ext", "scripts")  # folders that hold no kernels
MISSING = re.compile(r"No module named '([\w.]+)'")


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    name: str
    status: str
    reason: str
    seconds: float


def main() -> int:
    """Print the table; the exit status says whether anything failed."""
    parser = argparse.ArgumentParser(prog="conformance", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("path", type=Path)
    parser.add_argument("--only", "-k", default="", help="run only what has this in its name")
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--library", action="store_true", help="PATH is a checkout of aws-neuron/nki-library")
    parser.add_argument("--folder", default="core", help="of nki-library's tests, e.g. core/qkv")
    parser.add_argument("--most", type=int, default=0, help="cases of each test of nki-library, the smallest first")
    parser.add_argument("--memory", type=float, default=12, help="of a case of nki-library, in GiB")
    parser.add_argument(
        "--nki", default="0.3", help="release of NKI that nki-library was written for; 0.3 is that of April 2026"
    )
    parser.add_argument("--results", type=Path, help="JSON lines: what is in it is not run again, but shown")
    options = parser.parse_args()
    if options.library:
        path, limits = options.path.resolve(), (options.timeout, options.memory)
        return library.main(path, options.folder, options.only, options.most, *limits, options.nki, options.results)
    lines, root = known(options.results, options.only), options.path.resolve()
    for line in run(root, options.only, options.timeout, frozenset(line.name for line in lines)):
        lines.append(line)
        if options.results:
            with options.results.open("a", encoding="utf-8") as stream:
                print(json.dumps(asdict(line)), file=stream)
        print(f"{line.status:8} {line.seconds:6.1f} s  {line.name}", flush=True)
        if line.reason:
            print(f"{'':19}{line.reason}", flush=True)
    counts = Counter(line.status for line in lines)
    print(", ".join(f"{counts[s]} {s}" for s in ("passed", "failed", "refused")))
    return 1 if counts["failed"] else 0


def known(results: Path | None, only: str) -> list[Line]:
    """Lines of earlier runs; the last one of each name counts."""
    if results is None or not results.exists():
        return []
    lines = [Line(**json.loads(text)) for text in results.read_text(encoding="utf-8").splitlines()]
    return list({line.name: line for line in lines if only in line.name}.values())


def run(root: Path, only: str, timeout: float, done: frozenset[str] = frozenset()) -> Iterator[Line]:
    """The lines of the table, one after the other, but for those that are done."""
    files = {name.split("::")[0] for name in done if "::test_" in name}
    for file in sorted(root.rglob("*.py")):
        name = str(file.relative_to(root))
        if any(part in NOT_RUN for part in file.relative_to(root).parts[:-1]):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        if "nki" not in text:
            continue
        if file.name.startswith("test_") and re.search(r"^\s*def test_\w+\(self|^class Test", text, re.M):
            if only in name and name not in files:
                yield from run_tests(root, file, name, timeout)
        elif is_script(text) and only in name and name not in done:
            yield run_script(root, file, name, timeout)
        for case in cases.for_file(name):
            if only in f"{name}::{case}" and f"{name}::{case}" not in done:
                yield run_case(root, file, f"{name}::{case}", case, timeout)


def is_script(text: str) -> bool:
    """Whether running the file does something."""
    return "__main__" in text or bool(re.search(r"^(result|o|test_\w+)\b.*\(", text, re.M))


def run_script(root: Path, file: Path, name: str, timeout: float) -> Line:
    """A file with a main part."""
    started = time.monotonic()
    arguments = [str(RUNNER), "script", str(file), str(root), *cases.ARGUMENTS.get(file.name, ())]
    code, output = execute(arguments, file.parent, timeout)
    return Line(name, *judge(code, output, file.name), time.monotonic() - started)


def run_case(root: Path, file: Path, name: str, case: str, timeout: float) -> Line:
    """A kernel with inputs of ours."""
    started = time.monotonic()
    code, output = execute([str(RUNNER), "case", str(file), str(root), case], file.parent, timeout)
    return Line(name, *judge(code, output), time.monotonic() - started)


def run_tests(root: Path, file: Path, name: str, timeout: float) -> Iterator[Line]:
    """Every test of a file."""
    started = time.monotonic()
    report = Path(tempfile.gettempdir(), f"conformance-{file.stem}-{time.time_ns()}.xml")
    code, output = execute([str(RUNNER), "tests", str(file), str(root), str(report)], file.parent, timeout)
    if not report.exists():
        yield Line(name, *judge(code or 1, output), time.monotonic() - started)
        return
    for test in ElementTree.parse(report).iter("testcase"):
        trouble = next((child for child in test if child.tag in ("failure", "error", "skipped")), None)
        told = "" if trouble is None else trouble.text or trouble.get("message") or "no reason given"
        verdict = judge(int(bool(told)), told, test.get("name") or "")
        yield Line(f"{name}::{test.get('name')}", *verdict, float(test.get("time") or 0))
    report.unlink()


def execute(arguments: list[str], folder: Path, timeout: float) -> tuple[int, str]:
    """Exit status and all output of a Python process."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, **cases.environment(arguments[2])},
        )
    except subprocess.TimeoutExpired:
        return 124, f"took longer than {timeout:.0f} s"
    return done.returncode, done.stdout + done.stderr


def judge(code: int, output: str, name: str = "") -> tuple[str, str]:
    """Status and reason, from how a process or the test `name` ended."""
    status, reason = _judged(code, output)
    if (wanted := cases.MUST_FAIL.get(name)) and wanted in output:
        return "passed", f"refused as it must be: {reason}"
    return status, f"{reason}  ({cases.DISAGREE[name]})" if status == "failed" and name in cases.DISAGREE else reason


def _judged(code: int, output: str) -> tuple[str, str]:
    differs = re.search(r"(NKI and \w+ differ|Is close\??:? False|matches\? False)", output)
    if code == 0 and not differs:
        return "passed", ""
    if differs:
        return "failed", differs.group(0)
    missing = MISSING.search(output)
    if missing:
        return "refused", f"needs {missing.group(1)}"
    ours = re.findall(r"(TRN\d{3}: .*)\n(?:  at     (.*)\n)?", output)
    if ours:
        what, where = ours[-1]
        place = re.sub(r"^.*/", "", where)
        status = "refused" if what.startswith("TRN414") else "failed"
        return status, f"{what}{'  at ' + place if place else ''}"
    lines = [line for line in output.strip().splitlines() if line.strip() and not line.startswith(" ")]
    return "failed", lines[-1][:150] if lines else f"exit status {code}"


if __name__ == "__main__":
    raise SystemExit(main())

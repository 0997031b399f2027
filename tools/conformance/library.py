# SPDX-License-Identifier: Apache-2.0
"""Run the integration tests of aws-neuron/nki-library here and print what became of each case; see `__main__.py`.

Cases and how each is run: `library_harness.py`. A case that the tests exclude or skip on trn2 is run for trn3. Cases
that must fail (the tests' own negative ones) are counted apart: refusing is all that they ask for.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PLATFORMS = ("trn2", "trn3")
SEED = "0"


def main(
    root: Path,
    folder: str,
    only: str,
    most: int,
    timeout: float,
    memory: float,
    nki: str,
    results: Path | None = None,
) -> int:
    """Print a line per case and the table per test file; the exit status says whether anything failed.

    nki: the release of NKI that the checkout was written for. results: a file of JSON lines. Cases that it holds are
    not run again, and are in the table; new ones are added.
    """
    options = {"only": only, "most": most, "timeout": timeout, "memory": memory * 2**30, "nki": nki}
    lines = known(results, folder, only)
    for line in cases(root, folder, options, [line["id"] for line in lines]):
        lines.append(line)
        if results:
            with results.open("a", encoding="utf-8") as stream:
                print(json.dumps(line | {"text": line.get("text", "")[:8000]}), file=stream)
        print(f"{line['status']:8} {line['seconds']:6.1f} s  {line['name']}", flush=True)
        if line["reason"]:
            print(f"{'':19}{line['reason']}", flush=True)
        if line["status"] == "failed" and len(only) > 20:  # somebody looks at this case
            print(line["text"], flush=True)
    print("\n".join(table(lines)))
    return 1 if any(line["status"] == "failed" for line in lines) else 0


def known(results: Path | None, folder: str, only: str) -> list[dict[str, Any]]:
    """Lines of an earlier run for these cases; the last one of each counts."""
    if results is None or not results.exists():
        return []
    lines = [json.loads(text) for text in results.read_text(encoding="utf-8").splitlines()]
    mine = [line for line in lines if f"nkilib/{folder}" in line["id"] and only in line["id"]]
    return list({line["id"]: line for line in mine}.values())


def cases(root: Path, folder: str, options: dict[str, Any], already: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """What became of each case, platform after platform; already: cases that need no run."""
    done = list(already)
    for platform in PLATFORMS:
        last = platform == PLATFORMS[-1]
        for line in run(root, folder, platform, options | {"done": done}):
            if line["outcome"] == "skipped" and not last:
                continue
            if line["name"] in done:
                continue
            done.append(line["name"])
            status, reason = judge(line)
            name = f"{line['name'].removeprefix('test/integration/nkilib/')} {platform}"
            yield line | {"id": line["name"], "name": name, "status": status, "reason": reason}


def run(root: Path, folder: str, platform: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lines of the harness as they come; see `library_harness`."""
    with tempfile.TemporaryDirectory(prefix="trnlab-library-") as scratch:
        report = Path(scratch) / "report.jsonl"
        report.touch()
        settings = json.dumps(options | {"report": str(report), "scratch": scratch})
        environment = os.environ | {
            "TRNLAB_CONFORMANCE": settings,
            "NEURON_PYTHONHASHSEED": SEED,
            "PYTHONHASHSEED": SEED,
            "NKILIB_SIMULATION_RUN_ALL": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "NEURON_PLATFORM_TARGET_OVERRIDE": platform,
            "TRNLAB_NKI_RELEASE": options["nki"],
            "PYTHONPATH": os.pathsep.join([str(HERE), str(root / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        tests = root / "test" / "integration" / "nkilib" / folder
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "library_harness",
            "-p",
            "no:cacheprovider",
            "-c",
            str(root / "test" / "pytest.ini"),
            "--rootdir",
            str(root),
            str(tests),
            "--test-mode",
            "simulation",
            "--platform-target",
            platform,
            "--force-local-cleanup",
            "--continue-on-collection-errors",
            "--output-directory",
            f"{scratch}/out",
        ]
        with subprocess.Popen(
            command, cwd=scratch, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            yield from _follow(report, process)
            output = process.stdout.read() if process.stdout else ""
        if '"collected"' not in report.read_text(encoding="utf-8"):
            raise SystemExit(f"nothing could be collected from {tests} for {platform}:\n{output[-3000:]}")


def _follow(report: Path, process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    with open(report, encoding="utf-8") as stream:
        ended = False
        while True:
            text = stream.readline()
            if text:
                line = json.loads(text)
                if "name" in line:
                    yield line
            elif ended:
                return
            else:
                try:
                    process.wait(0.1)
                    ended = True
                except subprocess.TimeoutExpired:
                    continue


NOT_SIMULATED = ("TRN414", "TRN408")
BROKEN = {  # cases of d2ad3a5 that fail in code of the library: what the error says, and why
    "test_qkv_cte_mxfp8_static_dequant": (
        "'module' object is not callable",
        "qkv_cte.py imports the module stream_shuffle_broadcast and calls it",
    ),
    "test_qkv_cte_mx_bf16_static_dequant": ("is_input_swizzled", "the kernel has no argument is_input_swizzled"),
}
DISAGREE = {  # cases that count as failed, and what they ask for
    "test_moe_tkg_mx": "a sum over partitions that nothing wrote: on the chip whatever was left behind, times zero",
}


def judge(line: dict[str, Any]) -> tuple[str, str]:
    """Status and reason: refused is what trnlab says that it does not simulate, and what needs another package.

    A case is broken when the tests' own code fails before it calls a kernel, or as `BROKEN` says.
    """
    text, function = line.get("text", ""), line["name"].split("::")[-1].split("[")[0]
    if line["outcome"] == "passed":
        return "passed", ""
    error, why = BROKEN.get(function, ("", ""))
    if error and error in text:
        return "broken", why
    status, reason = _judged(line, text)
    return status, f"{reason}  ({DISAGREE[function]})" if status == "failed" and function in DISAGREE else reason


def _judged(line: dict[str, Any], text: str) -> tuple[str, str]:
    if line["outcome"] == "skipped":
        return "skipped", last_line(text)
    if not line.get("reached", True) and "trnlab" not in text:
        return "broken", last_line(text)
    missing = re.search(r"No module named '([\w.]+)'", text)
    if missing:
        return "refused", f"needs {missing.group(1)}"
    ours = re.search(r"(TRN\d{3}: [^\n]*)((?:\n(?:E  )?  [^\n]*)*)", text[text.find("\nE ") :])
    if ours:
        what, rest = ours.groups()
        place = re.search(r"at\s+\S*?([\w.]+:\d+)", rest)
        details = "; ".join(" ".join(part) for part in re.findall(r"(limit|got)\s+([^\n]*)", rest))
        reason = f"{what} [{details[:160]}]{'  at ' + place.group(1) if place else ''}"
        return ("refused" if what.startswith(NOT_SIMULATED) else "failed"), reason
    return "failed", last_line(text)


def last_line(text: str) -> str:
    """The error's own line."""
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
    if not errors:
        errors = [line for line in text.strip().splitlines() if line.strip()]
    return errors[-1][:200] if errors else ""


def table(lines: list[dict[str, Any]]) -> list[str]:
    """Counts per test file and in all; positive cases, with those that must fail beside them."""
    columns = ("passed", "failed", "refused", "broken", "skipped")
    files: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        group = f"{line['status']} negative" if line["negative"] else line["status"]
        files[line["name"].split("::")[0]][group] += 1
        files["all"][group] += 1
    out = ["", f"{'':58}{''.join(f'{c:>9}' for c in columns)}   must fail: did"]
    for name in [n for n in sorted(files) if n != "all"] + ["all"] * ("all" in files):
        count = files[name]
        must = sum(count[f"{c} negative"] for c in columns)
        out.append(f"{name:58}{''.join(f'{count[c]:>9}' for c in columns)}   {count['passed negative']:>4} of {must}")
    total = files["all"]
    ran = sum(total[c] for c in columns[:4])
    out.append(f"share of cases that pass: {total['passed']}/{ran} = {100 * total['passed'] / max(ran, 1):.1f} %")
    return out

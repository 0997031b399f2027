# SPDX-License-Identifier: Apache-2.0
"""Send training scripts of models in real sizes through `trnlab estimate`, and judge what it says.

    python -m tools.sweep [NAME ...] [--seconds 300] [--results FILE] [--missing] [--scripts FOLDER]

Each in a process of its own, with nothing kept between them. Results are kept in a file; a model is done again only
when trnlab or its script has changed since, with `--missing` only when it has no result. `suspicious` is what checks
say that owe nothing to the compiler: PyTorch's own count of operations on the meta device, numbers of parameters and
samples, phases, and the limit that the report gives. `make sweep` runs it in the environment of `make zoo`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.sweep import checks
from tools.sweep.models import SCRIPTS
from tools.sweep.script import TrainingScript
from trnlab.chips import catalog
from trnlab.precision import MODES
from trnlab.sources import package_digest

ROOT = Path(__file__).parents[2]
TARGET, SECONDS = "trn1", 300
FINE = ("done", "suspicious", "refused")
# torchvision made for another build of PyTorch has no operators: its models need only their names.
NAMES = "from tools.zoo.run_one import declare_missing_operators\n\ndeclare_missing_operators()\n"


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.sweep", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names of models; all without this")
    parser.add_argument("--target", default=TARGET, help="what they are estimated for (%(default)s)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="for one estimate (%(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / ".sweep_cache.jsonl", help="where results are kept")
    parser.add_argument("--missing", action="store_true", help="only what has no result")
    parser.add_argument("--scripts", type=Path, help="a folder for scripts and reports, which else are thrown away")
    parser.add_argument("--judge", action="store_true", help="estimate nothing: judge kept results again")
    return parser.parse_args()


def main() -> int:
    """Estimate what has no result yet; 1 when a script crashes."""
    options = arguments()
    known = {r["model"]: r for r in map(json.loads, _lines(options.results))}
    with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
        folder = (options.scripts or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        for name in SCRIPTS:
            if options.names and not any(part in name for part in options.names):
                continue
            if not options.judge and not _current(known.get(name), name, options):
                known[name] = estimated(name, folder, options, known.get(name, {}))
                options.results.write_text("".join(json.dumps(r) + "\n" for r in known.values()))
            if name in known:
                print(line(judged(known[name], options.target)), flush=True)
    return int(any(record["verdict"] == "crashed" for record in known.values()))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _current(record: dict[str, Any] | None, name: str, options: argparse.Namespace) -> bool:
    """Whether a result says what would come out now."""
    if record is None or record["target"] != options.target or record["script"] != _digest(name):
        return False
    return options.missing or record["version"] == package_digest()


def _digest(name: str) -> str:
    return hashlib.sha256(SCRIPTS[name].text.encode()).hexdigest()[:16]


def estimated(name: str, folder: Path, options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """The record of one model. before: its last one, whose reference serves again where the script is the same."""
    path = folder / f"{name}.py"
    path.write_text(NAMES * _names_are_missing() + SCRIPTS[name].text)
    record: dict[str, Any] = {
        "model": name,
        "target": options.target,
        "script": _digest(name),
        "version": package_digest(),
        "verdict": "done",
    }
    same = before.get("script") == record["script"] and before.get("reference")
    if same:
        record["reference"] = before["reference"]
    else:  # nothing of another form tells its trainer to use the meta device
        record["reference"] = {} if SCRIPTS[name].whole else _reference(path, options.seconds)
    began = time.perf_counter()
    command = ["-m", "trnlab", "estimate", "--json", "--no-cache", "--stack", "ours", "--target", options.target]
    status, said, complained = _ended([*command, str(path)], options.seconds)
    record["wall_s"] = round(time.perf_counter() - began, 1)
    path.with_suffix(".json").write_text(said)
    path.with_suffix(".log").write_text(complained)
    if status is None:
        return record | {"verdict": "out of time", "why": [f"over {options.seconds} s"]}
    try:
        return record | {"report": _read(json.loads(said))}
    except (json.JSONDecodeError, KeyError, IndexError):
        code = re.findall(r"TRN\d{3}.*", complained)
        last = (complained.strip().splitlines() or [f"exit {status}"])[-1]
        return record | {"verdict": "refused" if code else "crashed", "why": [(code or [last])[-1][:300]]}


def _names_are_missing() -> bool:
    """Whether torchvision cannot be imported as it is."""
    if not hasattr(_names_are_missing, "found"):
        tried = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, check=False)
        _names_are_missing.found = bool(tried.returncode)  # type: ignore[attr-defined]
    return bool(_names_are_missing.found)  # type: ignore[attr-defined]


def _reference(path: Path, seconds: int) -> dict[str, Any]:
    status, said, complained = _ended(["-m", "tools.sweep.reference", str(path)], seconds)
    found = [text.removeprefix("RESULT ") for text in said.splitlines() if text.startswith("RESULT ")]
    path.with_suffix(".reference.log").write_text(complained)
    return json.loads(found[-1]) if found and status == 0 else {}


def _ended(arguments: Sequence[str], seconds: int) -> tuple[int | None, str, str]:
    """Status (None where time was over), output and complaints of a Python process."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "USE_TF": "0"}
    try:
        ended = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        return ended.returncode, ended.stdout, ended.stderr
    except subprocess.TimeoutExpired as error:
        return None, "", (error.stderr or b"").decode(errors="replace")


def _read(report: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a report."""
    kept = (
        "how",
        "steps",
        "parameters",
        "per_step",
        "counted",
        "complete",
        "learns",
        "notes",
        "precision",
        "findings",
    )
    of_target = ("step_s", "mfu", "limit", "fits", "parts", "modules", "memory", "why", "compiled_s")
    targets = [{name: target[name] for name in of_target} for target in report["targets"]]
    for target in targets:
        target["memory"] = {k: v for k, v in (target["memory"] or {}).items() if k != "largest"}
    return {name: report[name] for name in kept} | {"targets": targets}


def judged(record: dict[str, Any], target: str) -> dict[str, Any]:
    """A record with its verdict."""
    if "report" not in record:
        return record
    script: TrainingScript = SCRIPTS[record["model"]]
    peak = catalog.target(target).chip.peak_flops(MODES[record["report"]["precision"]])
    found, why = checks.verdict(record["report"], record["reference"], script, peak)
    return record | {"verdict": found, "why": why}


def line(record: dict[str, Any]) -> str:
    """One result, for the terminal."""
    told = f"{record['model']:<28}{record['verdict']:<12}"
    targets = record.get("report", {}).get("targets")
    if targets and targets[0]["step_s"]:
        one = targets[0]
        share = one["limit"]["seconds"] / one["step_s"] if one["limit"] else 0.0
        memory = one["memory"].get("total", 0) / 2**30
        told += (
            f"{1e3 * one['step_s']:>9.1f} ms{100 * (one['mfu'] or 0):>6.1f} %{100 * share:>6.1f} %{memory:>6.1f} GiB"
        )
    else:
        told += " " * 38
    missing = "" if record["reference"] else "(no reference) "
    findings = record.get("report", {}).get("findings", ())
    warned = sorted({f["code"] for f in findings if f["severity"] == "warning"})
    return (
        f"{told}{record['wall_s']:>6.0f} s  {missing}{' '.join(warned)} {'; '.join(record.get('why', ()))}".rstrip()
    )


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Run scripts of others on the CPU and on the chip, compare their losses, and write docs/scripts.md.

    python -m tools.scripts [NAME ...] [--sources FOLDER] [--work FOLDER] [--results FILE] [--missing] [--page]

Sources are fetched by their commits, or taken from `--sources`, a folder with one folder for each repository. They
are copied before they run; nothing of them is changed or kept here. Results are kept in results.jsonl, from which
the page is written: a script runs again only when trnlab or the tool has changed since, with `--missing` only when
it has no result, and names renew their rows alone. `make scripts` makes an environment with the packages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.scripts import data, page, processes
from tools.scripts.manifest import SCRIPTS
from tools.scripts.script import SOURCES, Script

ROOT = Path(__file__).parents[2]
TARGET, SECONDS = "trn1.2xlarge", 300
RESULTS = Path(__file__).with_name("results.jsonl")
_CODE = re.compile(r"TRN\d{3}")


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.scripts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names of scripts; all without this")
    parser.add_argument("--sources", type=Path, help="a folder with the repositories, which are fetched without this")
    parser.add_argument("--work", type=Path, help="where scripts run (a new folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where results are kept")
    parser.add_argument(
        "--seconds", type=int, default=SECONDS, help="of processor time for one process (%(default)s)"
    )
    parser.add_argument(
        "--older", type=Path, default=ROOT / ".venv-scripts", help="where older packages are, by name"
    )
    parser.add_argument("--missing", action="store_true", help="run only what has no result")
    parser.add_argument("--page", action="store_true", help="write docs/scripts.md from the results")
    return parser.parse_args()


def main() -> int:
    """Run what has no result yet; 1 where a loss is wrong."""
    options = arguments()
    work = options.work or Path(tempfile.mkdtemp(prefix="scripts-"))
    version = _version()
    known = {r["name"]: r for r in map(json.loads, _lines(options.results))}
    for script in SCRIPTS:
        if options.names and not any(name in script.name for name in options.names):
            continue
        before = known.get(script.name)
        if before is None or (before["version"] != version and not options.missing):
            record = run(script, work, options)
            known[script.name] = record | {"version": version}
            _keep(options.results, known)
        print(page.line(known[script.name]), flush=True)
    found = [known[script.name] | {"draws": script.draws} for script in SCRIPTS if script.name in known]
    if options.page:
        (ROOT / "docs" / "scripts.md").write_text(
            page.page(found, [script.name for script in SCRIPTS if script.name not in known])
        )
    processes.close()
    return int(any(page.wrong(record) for record in found))


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _keep(path: Path, known: dict[str, dict[str, Any]]) -> None:
    """In the order of the manifest, so that a row that is renewed is one line of the file."""
    path.write_text("".join(json.dumps(known[s.name]) + "\n" for s in SCRIPTS if s.name in known))


def _version() -> str:
    """Of all code that a run hangs on, before it is imported."""
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools" / "scripts").rglob("*.py")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


class NoDataError(Exception):
    """A script's data could not be made."""


# -- sources ------------------------------------------------------------------------------------------------------
def source(name: str, given: Path | None, work: Path) -> Path:
    """The folder of a repository at its commit."""
    if name == "own":
        return ROOT / "tools" / "scripts" / "own"
    if given is not None and (given / name).is_dir():
        return given / name
    repository, commit = SOURCES[name]
    folder = work / "sources" / name
    if not folder.exists():
        folder.mkdir(parents=True)
        for command in (
            ["init", "-q"],
            ["fetch", "-q", "--depth", "1", f"https://github.com/{repository}", commit],
            ["checkout", "-q", "FETCH_HEAD"],
        ):
            subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def prepared(script: Script, way: str, work: Path, options: argparse.Namespace) -> Path:
    """A copy of the script's folder with its data."""
    origin = source(script.source, options.sources, work)
    place = work / re.sub(r"\W+", "_", script.name) / way
    shutil.rmtree(place, ignore_errors=True)
    folder = place / (script.folder or "here")
    shutil.copytree(origin / script.folder, folder, symlinks=True)
    beside = origin / Path(script.folder).parent / "common"
    if script.source == "aws-neuron-samples" and beside.is_dir():
        shutil.copytree(beside, folder.parent / "common", dirs_exist_ok=True)
    shutil.copy(ROOT / "tools" / "scripts" / "own" / "seeded.py", folder)
    made = f"import tools.scripts.data as d, pathlib; d.{script.make.__name__}(pathlib.Path({str(folder)!r}))"
    if script.make is not data.nothing:
        status, said = processes.ended(["-c", made], ROOT, _environment(script, options), options.seconds)
        if status:
            raise NoDataError(said)
    for file in (*folder.rglob("*.py"), *folder.rglob("*.yaml")) if script.edits else ():
        file.write_text(edited(file.read_text(), script.edits))
    return folder


def edited(text: str, edits: Mapping[str, str]) -> str:
    """A script with the sizes and the data that it has no options for."""
    for old, new in edits.items():
        text = text.replace(old, new)
    return text


# -- runs ---------------------------------------------------------------------------------------------------------
def run(script: Script, work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What came of a script on the CPU and on the chip."""
    record: dict[str, Any] = {
        "name": script.name,
        "source": script.source,
        "note": script.note,
        "ranks": int(script.environment.get("NEURONCORE_NUM_DEVICES", script.ranks)),
        "draws": script.draws,
        "edits": [f"{old} -> {new}" for old, new in script.edits.items()],
        "command": " ".join(script.arguments),
    }
    for way in ("cpu", "chip"):
        try:
            folder = prepared(script, way, work, options)
        except NoDataError as error:
            return record | {"verdict": "no data", "said": str(error)[-300:]}
        record[way] = _run(script, way, folder, options)
    return record


def _environment(script: Script, options: argparse.Namespace) -> dict[str, str]:
    """Of a script's processes. PYTHONPATH: where it finds packages of the versions that it is of."""
    path = str((options.older / script.older).resolve()) if script.older else ""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRNLAB_PRECISION": "fp32",
        "USE_TF": "0",  # to transformers: whether TensorFlow is there is no matter of the script
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": path,
    }


def _run(script: Script, way: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    out = folder.parent / f"{way}-run"
    command, environment = _command(script, way, out)
    told = {**_environment(script, options), **script.environment, **environment}
    status, said = processes.ended(command, folder, told, options.seconds)
    (folder.parent / f"{way}.log").write_text(said)
    losses = [float(text) for text in re.findall(script.losses, said)]
    made: dict[str, Any] = {"status": status, "losses": losses}
    if status:
        codes = _CODE.findall(said)
        made["code"], made["said"] = (codes[-1] if codes else ""), _last(said)
    return made | (_summary(out, folder) if way == "chip" else {})


def _command(script: Script, way: str, out: Path) -> tuple[list[str], dict[str, str]]:
    if way == "cpu" and script.cpu is not None:
        return list(script.cpu), {}
    eager = {"TRNLAB_EAGER": "host"} if way == "cpu" else {}
    if script.ranks > 1:
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={script.ranks}"]
        return [*start, *script.arguments], {"TRNLAB_TARGET": TARGET, **eager}
    return ["-m", "trnlab.cli.main", "run", "--target", TARGET, "--out", str(out), *script.arguments], eager


def _last(said: str) -> str:
    """The line that says why it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"TRN\d{3}|Error|error:|Exception", line)]
    return (errors or lines or [""])[-1][:200]


def _summary(out: Path, folder: Path) -> dict[str, Any]:
    """What trnlab says of the run."""
    found = [*out.glob("**/summary.json"), *folder.glob("runs/**/summary.json")]
    told = [json.loads(path.read_text()) for path in found]
    ranked = [each for each in told if each.get("instructions")] or told
    if not ranked:
        return {}
    one = ranked[0]
    return {
        "steps": one.get("steps"),
        "instructions": one.get("instructions", 0),
        "step_time_s": one.get("step_time_s"),
        "on_host": (one.get("host_fallbacks") or {}).get("training", {}),
        "programs": (one.get("compile") or {}).get("executables", 0),
    }


if __name__ == "__main__":
    sys.exit(main())

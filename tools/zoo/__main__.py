# SPDX-License-Identifier: Apache-2.0
"""Train the zoo, each model in a process of its own, and write the table of docs/models.md.

    python -m tools.zoo [NAME ...] [--way compile_step] [--steps 20] [--results FILE] [--page]

Needs transformers, peft, timm, torchvision, diffusers, e3nn and JAX (for XLA): `make zoo` makes an environment with
them. Results are kept in a file; a model is trained again only when trnlab has changed since.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.zoo.run_one import WAYS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "models.md"
STEPS = 3  # with which the whole zoo takes an hour on two cores; gradients and two updates show in the losses
HEAD = """# Models

Models of other packages, unmodified, in tiny sizes with random weights, trained on the simulated Trainium (trn1,
fp32, AdamW) beside PyTorch on the host in float64 (float32 for the mixtures of experts, whose operators have no
float64). {steps} steps of training where a cell says no other number. `trains`, with the largest distance of a loss
as a part of the largest loss: the losses of all steps are as near as rounding explains. How far rounding moves them
is what it does to four trainings of the host in float32, three of them from weights that are off by a rounding or
two; a training is `wrong` beyond 20 times that and 1e-5. So is one of which any element of any gradient of the first
step is off by more than 20 times what rounding does to its tensor on the host, and 1e-5 of the largest in it.

Where rounding alone moves the host's losses by more than a thousandth (batch norm over few elements, say), two
trainings part ways whoever computes them. There the steps come `in pairs`: both steps on one batch, each pair from
the host's own state, so that the second loss shows what the first update did. `undecided`: rounding decides even
those.

A model that draws random numbers (stochastic depth) has other numbers on the chip than on the host. It is held
against XLA on the CPU, which runs the same captured programs and draws the same numbers.

With `compile_step` everything runs on the chip. With `torch.compile` the model and the optimizer's step are
compiled, and each operator beside them (a loss that the model does not compute, zeros for the optimizer's state) is
a program of its own. With `eager` nothing is compiled: the step is what was recorded. Operators that the host ran
during the steps would be in the table. With `xla`, XLA runs on the CPU what `compile_step` captures, as an opinion on
front end and graph that has nothing of the compiler or the chip in it. The page is written by `make zoo`.

"""


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all without this")
    parser.add_argument("--way", action="append", choices=WAYS, help="how they are compiled; all without this")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of training (%(default)s)")
    parser.add_argument("--seconds", type=int, default=900, help="for one model (%(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="models at once (%(default)s)")
    parser.add_argument("--results", type=Path, default=ROOT / ".zoo_cache.jsonl", help="where results are kept")
    parser.add_argument("--page", action="store_true", help="write docs/models.md from the results")
    return parser.parse_args()


def main() -> int:
    """Train what has no result yet; 1 when a model is wrong or crashes."""
    options = arguments()
    from tools.zoo.models import MODELS

    known = read(options.results)
    version = digest()
    ways = options.way or WAYS
    wanted = {
        name: [way for way in ways if not current(known.get((name, way)), version, options.steps)]
        for name in options.names or MODELS
    }

    def trained(name: str) -> list[dict[str, Any]]:
        return train(name, wanted[name], options.steps, options.seconds) if wanted[name] else []

    with ThreadPoolExecutor(options.jobs) as pool:
        for name, records in zip(wanted, pool.map(trained, wanted)):
            for record in records:
                known.pop((name, record["way"]), None)  # the newest are last
                known[name, record["way"]] = record | {"version": version}
            options.results.write_text("".join(json.dumps(r) + "\n" for r in known.values()))
            for way in ways:
                print(line(known[name, way]), flush=True)
    if options.page:
        PAGE.write_text(page(list(known.values())))
    return int(any(r["verdict"] in ("wrong", "crash") for r in known.values()))


def digest() -> str:
    """Of all that may change a result."""
    files = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "tools" / "zoo").rglob("*.py")])
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]


def read(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Results by model and way."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(r["model"], r["way"]): r for r in map(json.loads, lines)}


def current(record: dict[str, Any] | None, version: str, steps: int) -> bool:
    """Whether a result says what would come out now."""
    return record is not None and record.get("version") == version and record["steps"] == steps


def train(name: str, ways: Sequence[str], steps: int, seconds: int) -> list[dict[str, Any]]:
    """The records of one model, from a process of its own."""
    command = [sys.executable, "-m", "tools.zoo.run_one", name, str(steps), *ways]
    environment = {**os.environ, "TRNLAB_PRECISION": "fp32", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, cwd=ROOT)
        said, failed = ended.stdout, ending(ended.returncode, ended.stderr)
    except subprocess.TimeoutExpired as error:
        said = (error.stdout or b"").decode()
        failed = {"verdict": "too slow", "code": f"over {seconds} s"}
    found = [json.loads(text.removeprefix("RESULT ")) for text in said.splitlines() if text.startswith("RESULT ")]
    about = {"model": name, "steps": steps, "seconds": seconds}
    return [*found, *(about | failed | {"way": way} for way in ways[len(found) :])]


def ending(status: int, said: str) -> dict[str, Any]:
    """What became of a process that gave no result. Wheels of torchvision for GPUs lack operators that some of its
    models need on the host as well: that is nothing of the device."""
    if "custom C++ ops" in said:
        return {"verdict": "not tried", "code": "(torchvision has no operators here)", "message": said[-2000:]}
    return {"verdict": "crash", "code": f"exit {status}", "message": said[-2000:]}


def line(record: dict[str, Any]) -> str:
    """One result, for the terminal."""
    return f"{record['model']:<26}{record['way']:<15}{cell(record):<60}{record['seconds']:>7} s"


def cell(record: dict[str, Any]) -> str:
    """One result, for the table."""
    verdict, hosts = record["verdict"], record.get("host_ops", {})
    if verdict in ("trains", "undecided", "wrong"):
        how = ", in pairs" if record.get("pairs") else ""
        steps = record["steps"]
        how += f", {steps} step{'s' * (steps > 1)}" if steps != STEPS else ""
        slopes = record.get("gradients")
        how += (
            f", {slopes['worst']} off by {slopes['gap'] / slopes['scale']:.0e}" if slopes and slopes["wrong"] else ""
        )
        return f"{verdict}, {record['gap'] / record['scale']:.0e}{how}" + on_host(hosts)
    operators = ", ".join(record.get("operators", ()))
    return " ".join(filter(None, (verdict, record.get("code", ""), operators)))


def on_host(counts: dict[str, int], most: int = 3) -> str:
    """The most frequent operators that the host ran, and how many others."""
    first = [f"{n} {name.removeprefix('aten::')}" for name, n in list(counts.items())[:most]]
    others = sum(list(counts.values())[most:])
    return "; host: " + ", ".join([*first, *([f"{others} others"] if others else [])]) if counts else ""


def page(records: list[dict[str, Any]]) -> str:
    """The whole page."""
    from tools.zoo.models import MODELS

    names = sorted({*MODELS, *(r["model"] for r in records)})
    newest = records[-1].get("version")
    cells = {(r["model"], r["way"]): cell(r) + " *" * (r.get("version") != newest) for r in records}
    counts = [sum(r["verdict"] == "trains" for r in records if r["way"] == way) for way in WAYS]
    untried = ("the reference", "not tried")
    tried = [sum(r["way"] == way and r["verdict"] not in untried for r in records) for way in WAYS]
    said = "; ".join(f"with `{way}` {counts[i]} of {tried[i]} models train" for i, way in enumerate(WAYS))
    said = f"{said[0].upper()}{said[1:]}.\n\n"
    if len({r.get("version", r["model"]) for r in records}) > 1:
        said = said.rstrip() + "\nNot all cells are of one version of trnlab: a star marks those of an older one.\n\n"
    rows = [" | ".join([f"| {n}", *(cells.get((n, way), "not run") for way in WAYS)]) + " |" for n in names]
    head = f"| model | {' | '.join(WAYS)} |\n{'|---' * (len(WAYS) + 1)}|\n"
    return HEAD.format(steps=STEPS) + said + head + "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Run the vendor's libraries on our torch_xla, beside one process on the CPU, and write docs/vendor_libraries.md.

    python -m tools.scripts.vendor_libraries [NAME ...] [--sources FOLDER] [--work FOLDER] [--page]

The environment has trnlab (installed, for its start: ADR 105), transformers 4.51, datasets, tenacity, tensorboard,
parameterized, pytest-mock. `--packages` is a folder with what optimum-neuron pins, by `pip install --no-deps -t`:
transformers 4.57.1, optimum 2.0.0, huggingface_hub 0.36.0, tokenizers 0.22.1, accelerate 1.8.1, peft 0.17.0, trl
0.24.0, evaluate 0.4.3, datasets 4.1.1, dill 0.3.8, multiprocess 0.70.16. Sources are fetched by their commits, or
taken from `--sources`; nothing of them is changed or kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tools.scripts import __main__ as runner

SOURCES = {
    "neuronx-distributed": ("aws-neuron/neuronx-distributed", "fbac349b61a3adbb123c2983835af692840ff62f"),
    # the kernels of neuronxcc.nki.kernels, at the last commit that has them, and those that the library imports
    "nki-samples": ("aws-neuron/nki-samples", "8370e11ba8d894be5e3c687c0772e7e1e889de4c"),
    "nki-library": ("aws-neuron/nki-library", "d2ad3a579498d1888aa8740af97fd325dd5f2740"),
    "optimum-neuron": ("huggingface/optimum-neuron", "213224e6aae42e570b88b3a5e6f2716112823469"),
}
FOLDERS = ("neuronx-distributed/src", "nki-samples/src", "nki-library/src/nkilib_src")
OWN = runner.ROOT / "tools" / "scripts" / "own"
PAGE = runner.ROOT / "docs" / "vendor_libraries.md"
TARGET, LARGEST = "trn1.32xlarge", 1e-5  # of a loss, in fp32
TP = PP = DP = 2
_LOSS = r"step (\d+) step loss ([\d.]+)"
_STEP = r"step loss ([\d.]+) grad norm ([\d.]+)"
HEAD = """# The vendor's libraries

neuronx-distributed and optimum-neuron from their public sources, unmodified, on trnlab's `torch_xla` (trn1.32xlarge,
fp32), one process for each NeuronCore, beside one process on the CPU. `python -m tools.scripts.vendor_libraries
--page` fetches the sources, runs all of this and writes this page. The distance is the largest of a loss, as a part
of it.

| what | ranks | steps | distance from one process | |
|---|---|---|---|---|
"""
NOTES = "## Notes\n"  # what people wrote below it stays


class Place:
    """Where sources are, and how processes of them start."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.work = options.work or Path(tempfile.mkdtemp(prefix="libraries-"))
        self.sources = {name: runner.source(name, options.sources, self.work) for name in SOURCES}
        self.seconds, self.packages = options.seconds, options.packages

    def run(
        self, command: list[str], folder: Path, ranks: int = 0, *paths: Path, target: str = TARGET
    ) -> tuple[int, str]:
        """Status and output of a script; with ranks by torchrun; without a target on the CPU."""
        found = [str(self.sources[name.partition("/")[0]] / name.partition("/")[2]) for name in FOLDERS]
        start = [sys.executable]
        if ranks:
            start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
        environment = {
            **{name: value for name, value in os.environ.items() if name != "TRNLAB_TARGET"},
            **({"TRNLAB_TARGET": target} if target else {}),
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *found, os.environ.get("PYTHONPATH", "")]),
            "TRNLAB_PRECISION": "fp32",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "USE_TF": "0",
        }
        told: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False}
        limit = partial(resource.setrlimit, resource.RLIMIT_CPU, (self.seconds, self.seconds))
        done = subprocess.run([*start, *command], cwd=folder, env=environment, preexec_fn=limit, **told)
        return done.returncode, done.stdout


def layers(place: Place, *arguments: str) -> dict[str, Any]:
    """Parallel layers and loss on two ranks."""
    status, said = place.run([str(OWN / "nxd_layers.py"), *arguments], place.work, 2)
    pairs = [(float(a), float(b)) for a, b in re.findall(r"loss ([\d.]+) beside ([\d.]+)", said)]
    return _record(2, status, said, pairs)


def llama(place: Place) -> dict[str, Any]:
    """The library's own example at a tiny size, with weights that its own converter cut into parts."""
    example = place.sources["neuronx-distributed"] / "examples" / "training" / "llama"
    folder = place.work / "llama"
    place.run([str(OWN / "nxd_llama.py"), "make", str(folder)], place.work)
    config = folder / "model" / "config.json"
    convert = _options(
        input_dir=folder / "model" / "whole.bin",
        output_dir=folder / "parts" / "pretrained_weight",
        config=config,
        model_key=None,
        tp_size=TP,
        pp_size=PP,
        n_layers=2,
        hw_backend="trn1",
    )
    status, said = place.run(["convert_checkpoints.py", "--convert_from_full_state", *convert], example)
    if status:
        return _record(TP * PP * DP, status, said, [])
    _, alone = place.run([str(OWN / "nxd_llama.py"), "train", str(folder), str(DP)], place.work, 0, example)
    told = _options(
        train_batch_size=8 // DP,
        training_dir=folder / "data",
        training_config=config.parent,
        max_steps=4,
        seq_len=16,
        pipeline_parallel_size=PP,
        tensor_parallel_size=TP,
        num_microbatches=2,
        lr=0.01,
        min_lr=0.001,
        warmup_steps=1,
        constant_steps=0,
        use_zero1_optimizer=1,
        use_sequence_parallel=1,
        use_selective_checkpoint=1,
        fuse_qkv=0,
        use_gpu_compatible_precision=0,
        use_meta_device_init=1,
        tb_dir="",
        metrics_file=folder / "metrics.json",
        pretrained_weight=1,
        checkpoint_dir=folder / "parts",
    )
    script = "tp_pp_llama_hf_pretrain/run_llama_nxd.py"
    status, said = place.run([script, *told], example, TP * PP * DP, example)
    ours, theirs = (re.findall(_STEP, text) for text in (said, alone))
    return _record(TP * PP * DP, status, said, [(float(a[0]), float(b[0])) for a, b in zip(ours, theirs)])


def _options(**settings: Any) -> list[str]:
    """A command line's options."""
    return [str(word) for name, value in settings.items() for word in (f"--{name}", value)]


def optimum(place: Place, **layout: int) -> dict[str, Any]:
    """A tiny Llama by NeuronTrainer, beside the trainer of transformers on the CPU."""
    folder, script = place.work / "optimum", str(OWN / "optimum_llama.py")
    installed = place.work / "optimum-neuron"  # transformers asks for the version of a distribution
    if not installed.exists():
        source = str(place.sources["optimum-neuron"])
        command = [
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            str(installed),
            source,
        ]
        status, said = place.run(command, place.work)
        if status:
            return _record(1, status, said, [])
    paths = (installed, *([place.packages] if place.packages else []))
    place.run([script, "make", str(folder)], place.work, 0, *paths)
    _, alone = place.run([script, "cpu", str(folder)], place.work, 0, *paths, target="")
    ranks = math.prod(layout.values())
    status, said = place.run([script, "neuron", str(folder), *_options(**layout)], place.work, ranks, *paths)
    expected = {step: float(loss) for step, loss in re.findall(_LOSS, alone)}
    pairs = [(float(loss), expected[step]) for step, loss in re.findall(_LOSS, said) if step in expected]
    return {**_record(ranks, status, said, pairs), "steps": len(expected)}


def tests(place: Place) -> dict[str, Any]:
    """The library's unit tests."""
    folder = place.sources["neuronx-distributed"]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "test/unit_test"]
    _, said = place.run(command, folder)
    return {
        "ranks": 1,
        "note": next((line for line in reversed(said.splitlines()) if " passed" in line), said[-200:]),
    }


def _record(ranks: int, status: int, said: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    failed = status or not pairs
    distance = max((abs(a - b) / abs(b) for a, b in pairs), default=None)
    return {"ranks": ranks, "steps": len(pairs), "distance": distance, "note": runner._last(said) if failed else ""}


RUNS: dict[str, Callable[[Place], dict[str, Any]]] = {
    "parallel layers and cross entropy, TP2": layers,
    "the same, sequence parallel": lambda place: layers(place, "sequence"),
    "examples/training/llama, TP2 x PP2 x DP2, ZeRO-1, sequence parallel, from a checkpoint": llama,
    "optimum-neuron, NeuronTrainer, Llama": optimum,
    "the same, TP2": lambda place: optimum(place, tensor=2),
    "test/unit_test": tests,
}


def main() -> int:
    """Run what is asked for; 1 where a loss is not that of one process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="parts of names; all without this")
    parser.add_argument("--sources", type=Path, help="a folder with the repositories, which are fetched without this")
    parser.add_argument("--packages", type=Path, help="a folder with the packages that optimum-neuron pins")
    parser.add_argument("--work", type=Path, help="where it runs (a new folder)")
    parser.add_argument("--seconds", type=int, default=3600, help="of processor time for one process (%(default)s)")
    parser.add_argument("--page", action="store_true", help="write docs/vendor_libraries.md")
    options = parser.parse_args()
    runner.SOURCES = {**runner.SOURCES, **SOURCES}  # type: ignore[attr-defined]
    place, found = Place(options), {}
    for name, run in RUNS.items():
        if not options.names or any(part in name for part in options.names):
            found[name] = run(place)
            print(name, json.dumps(found[name]), flush=True)
    if options.page:
        below = PAGE.read_text().partition(NOTES)[2] if PAGE.exists() else ""
        PAGE.write_text(page(found) + (f"\n{NOTES}{below}" if below else ""))
    return int(any((record.get("distance") or 0) > LARGEST for record in found.values()))


def page(found: dict[str, dict[str, Any]]) -> str:
    """docs/vendor_libraries.md."""
    rows = [
        f"| {name} | {r['ranks']} | {r.get('steps', '')} | "
        f"{'' if r.get('distance') is None else format(r['distance'], '.1e')} | {r['note']} |"
        for name, r in found.items()
    ]
    sources = [f"- {name}: https://github.com/{where} at `{commit}`" for name, (where, commit) in SOURCES.items()]
    return HEAD + "\n".join([*rows, "", "Sources:", "", *sources, ""])


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The table of docs/scripts.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.scripts.script import SOURCES

LARGEST = 2e-3  # of a loss, beyond which it is wrong: what rounding in float32 does to a few steps of training
DRAWING = frozenset(
    {
        "bernoulli_",
        "native_dropout",
        "normal_",
        "uniform_",
        "random_",
        "exponential_",
        "geometric_",
        "multinomial",
        "randperm",
        "cauchy_",
        "log_normal_",
        "bernoulli",
    }
)
HEAD = """# Scripts of others

Scripts as people have them, unmodified but for data and sizes, which command lines and files say: on the simulated
Trainium (trn1.2xlarge, fp32) beside the CPU. `make scripts` fetches them by their commits, makes data in their
formats and tiny models, runs each twice and writes this page.

`chip`: what the script does with tensors on the device was recorded and ran as programs on instructions; the number
of operators that the host ran during the steps is said where there are any, with their names in the last column.
`drawn` are random numbers, which the host draws in the order of the script, as inputs of the steps (ADR 98).
`host`: nothing reached the chip, which
is right for a script whose device is the CPU. `refused`: by the code that is given (see [errors.md](errors.md)).
`fails`: the script ended with an error on the chip; where it fails on the CPU as well, that is said: its sources do
not fit the packages' versions here. The loss column has the largest distance of a printed loss from the CPU's as a
part of the largest loss, over so many losses. The reference of scripts without an option for the device is the same
command with `TRNLAB_EAGER=host`, which has PyTorch's CPU compute every operator. The step's time is the simulated
chip's. `draws`: the script takes other samples in each run (examples/mnist shuffles on an accelerator alone,
siamese_network draws pairs without a seed), or has the chip round at random, so that losses are not compared.
Scripts that draw without a seed are started by `tools/scripts/own/seeded.py`, which gives one. What a script has no
option for, a size or where its data come from, is replaced in its text as the list under the table says.

## What torch_xla is here

`import torch_xla` and `import torch_neuronx` find trnlab's under `trnlab run`, and in processes with TRNLAB_TARGET,
such as torchrun's, before `import torch` or after it (where trnlab is installed and not merely on PYTHONPATH: ADR
105). A rank is a process with one NeuronCore: torchrun, `trnlab run --ranks N` or `xmp.spawn` with
NEURONCORE_NUM_DEVICES start several. There are:

- `torch_xla`: `device`, `sync`, `step`, `compile`, `launch`, `manual_seed`; the device `xla` in every argument
- `core.xla_model`: the device, `mark_step`, closures of steps, all collectives with groups, `optimizer_step`, `save`
- `runtime`: ranks and their numbers; `core.functions`: collectives that are differentiated
- `distributed`: `xla_backend` (`init_process_group("xla")`, `xla://`, `pjrt://`), `xla_multiprocessing`,
  `parallel_loader`, `zero_redundancy_optimizer`; `spmd`'s marks on a mesh of one device
- `utils`: `checkpoint`, `serialization` (the files of the vendor's stack), `utils`; `test.test_utils`
- `amp`: `autocast`, `GradScaler`, `syncfree` optimizers; `experimental.scan`, `scan_layers`
- `torch_neuronx`: `trace` and `dynamic_batch`, `nki_jit`, `nki_op`, `xla_impl.ops`, `testing`, `get_platform_target`

Refused by name when they are used, TRN296: `fsdp` (PyTorch's `fully_shard` instead), the vendor's compiler and its
files (HLO, NEFF), custom operators in C++, `send` and `recv`, Pallas kernels of TPUs.
`tests/frontends/vendor_names.txt` lists every name that the callers named there use, and which of the two it is.

Scripts ask for an accelerator in several ways. `torch.accelerator.is_available()` and `current_accelerator()` give
`neuron` where trnlab is installed. Those written for CUDA are told yes by `torch.cuda.is_available()` and find the
chip behind `cuda`: as a device, in `x.cuda()`, `torch.cuda`'s functions, `torch.cuda.amp`,
`init_process_group("nccl")`, device meshes and files. That is so under trnlab's commands and where `TRNLAB_TARGET`
is set, for scripts whose own text, or that of a module of the user's, names it; installed packages are told no, and
find `neuron` by its name (ADR 181). On an instance nobody answers for CUDA: a run says so once, `trnlab check`
lists the lines that have to say `neuron` there (TRN283), and `TRNLAB_CUDA=none` is as there. Lightning has the
accelerator `neuron`, which `auto` and `gpu` are where a target is chosen.
Pinned memory is ordinary memory that says it is pinned: of loaders, of `x.pin_memory()`, and of
`torch.empty(..., pin_memory=True)` and its kin, where the script or a module beside it says so.

neuronx-distributed runs: [the vendor's libraries](vendor_libraries.md). It needs the kernels that
`neuronxcc.nki.kernels` had (src/ of aws-neuron/nki-samples at 8370e11) and those of nki-library (src/nkilib_src) on
PYTHONPATH. Once torch_xla is imported, the device of a tensor is `xla:0` to the script and to its libraries (ADR
102). optimum-neuron's trainer runs, too.

## Results

"""


def wrong(record: dict[str, Any]) -> bool:
    """Whether losses are not the CPU's."""
    gap = distance(record)
    return gap is not None and gap > LARGEST


def distance(record: dict[str, Any]) -> float | None:
    """The largest distance of a loss from the CPU's, as a part of the largest; None where none are compared."""
    ours, theirs = (record.get(way, {}).get("losses") or [] for way in ("chip", "cpu"))
    if record.get("draws") or not ours or len(ours) != len(theirs) or record.get("chip", {}).get("status"):
        return None
    if record.get("ranks", 1) > 1:  # whose lines come in any order
        ours, theirs = sorted(ours), sorted(theirs)
    largest = max(map(abs, theirs)) or 1.0
    return float(max(abs(a - b) for a, b in zip(ours, theirs)) / largest)


def verdict(record: dict[str, Any]) -> str:
    """In a word or two."""
    if "verdict" in record:
        return f"{record['verdict']}: {record['said']}"
    chip, cpu = record["chip"], record["cpu"]
    if chip["status"] == 124:
        return "too slow"
    if chip["status"]:
        also = ", and on the CPU" if cpu["status"] else ""
        return f"refused, {chip['code']}" if chip["code"] and not also else f"fails{also}"
    if not chip.get("instructions"):
        return "host"
    drawn, others = _on_host(chip)
    count, draws = sum(others.values()), sum(drawn.values())
    parts = ["chip"]
    if count:
        parts.append(f"{count} operator{'s' * (count > 1)} on the host")
    if draws:
        parts.append(f"{draws} drawn")
    return ", ".join(parts)


def _on_host(chip: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """What the host ran during the steps, by name: what draws random numbers, and all else."""
    drawn: dict[str, int] = {}
    others: dict[str, int] = {}
    for name, count in (chip.get("on_host") or {}).items():
        short = name.removeprefix("aten::")
        (drawn if short in DRAWING else others)[short] = count
    return drawn, others


def line(record: dict[str, Any]) -> str:
    """One script in one line."""
    gap = distance(record)
    said = record.get("chip", {}).get("said", "")
    return f"{record['name']}: {verdict(record)}; loss {'-' if gap is None else f'{gap:.1e}'} {said}"


def _row(record: dict[str, Any]) -> str:
    chip, gap = record.get("chip", {}), distance(record)
    time = chip.get("step_time_s")
    count = len(chip.get("losses") or ())
    loss = "" if gap is None else f"{gap:.1e} of {count}" + (" **wrong**" if wrong(record) else "")
    loss = "draws" if record.get("draws") and count else loss
    said = chip.get("said", "").replace("|", "/").replace("`", "'")
    on_host = ", ".join(f"`{name}` {count}" for name, count in _on_host(chip)[1].items())
    note = "; ".join(filter(None, (record.get("note", ""), on_host, f"`{said}`" if said else "")))
    ranks = f", {record['ranks']} ranks" if record.get("ranks", 1) > 1 else ""
    cells = (
        f"{record['name']}{ranks}",
        verdict(record),
        str(chip.get("steps") or ""),
        str(chip.get("programs") or ""),
        f"{time * 1e6:.0f} us" if time else "",
        loss,
        note,
    )
    return f"| {' | '.join(cells)} |"


def page(records: Sequence[dict[str, Any]], missing: Sequence[str] = ()) -> str:
    """docs/scripts.md. missing: scripts of the manifest that have no result."""
    chip = [r for r in records if "chip" in r and verdict(r).startswith("chip")]
    compared = [r for r in records if distance(r) is not None]
    head = [
        f"Of {len(records)} runs {len(chip)} reach the chip; losses of {len(compared)} were compared, of which "
        f"{sum(map(wrong, compared))} are wrong (beyond {LARGEST:g}).",
        "",
        "| script | runs on | steps | programs | a step | loss beside the CPU's | |",
        "|---|---|---|---|---|---|---|",
    ]
    sources = [f"- {name}: https://github.com/{where} at `{commit}`" for name, (where, commit) in SOURCES.items()]
    rest = ["", f"Of the manifest, without a result on this page: {'; '.join(missing)}."] if missing else []
    replaced = [f"- {r['name']}: {', '.join(f'`{each}`' for each in r['edits'])}" for r in records if r.get("edits")]
    tail = [
        *rest,
        *(["", "Replaced in their texts:", "", *replaced] if replaced else []),
        "",
        "Sources:",
        "",
        *sources,
        "",
        "Scripts named after a library are those of `tools/scripts/own`.",
        "",
    ]
    return HEAD + "\n".join([*head, *map(_row, records), *tail])

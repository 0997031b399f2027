# SPDX-License-Identifier: Apache-2.0
"""From one checkpoint to another: of any layout and format that is known here, slice by slice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from trnlab.errors import RunError, UsageError
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving.portable import dcp, hugging_face, vendor
from trnlab.frontends.torch.saving.portable.tables import CheckpointTable, TensorEntry
from trnlab.storage import Store, open_store
from trnlab.storage.checkpoints import DONE, METADATA, Checkpoints, name_of
from trnlab.storage.finished_checkpoint import OLDER, FinishedCheckpoint, record_of
from trnlab.storage.layouts import ParallelDegrees, RankPosition, ShardingRules, cut, stages

_TREE = "trnlab"  # in the vendor's user_content: what is no tensor of a model or optimizer
_TAG = re.compile(r"^(.+?)/(?:model|optim)/dp_rank_")


class CheckpointSource:
    """A checkpoint that was found: its table, step, and what the ranks had besides tensors. form: what it is of.
    uncovered: why damage to it may stay unnoticed, or nothing."""

    def __init__(
        self, form: str, step: int, table: CheckpointTable, tree: Mapping[str, Any], uncovered: str = ""
    ) -> None:
        self.form, self.step, self.table, self.tree, self.uncovered = form, step, table, tree, uncovered

    def models(self) -> list[str]:
        """The names of parameters and buffers, without `model.`."""
        return [str(e.path[-1]) for e in self.table.entries.values() if e.path[0] == "model"]


def source(url: str, step: int | None, rules: ShardingRules) -> CheckpointSource:
    """The newest checkpoint at a place, or that of a step: trnlab's own, a DCP folder, the vendor's, Hugging Face's.

    Raises OSError, UsageError (TRN534) where there is none, RunError for what cannot be read.
    """
    store = open_store(url)
    names = [item.name for item in store.items()]
    if store.exists(METADATA):
        uncovered = _of_step(store)
        return CheckpointSource("dcp", step or 0, _usual_names(dcp.of_folder(store)), {}, uncovered)
    if any(name in (hugging_face.ONE, hugging_face.INDEX) for name in names):
        return CheckpointSource("hugging face", step or 0, hugging_face.table(store), {}, _FOREIGN)
    tags = {m[1] for name in names if (m := _TAG.match(name)) and f"{m[1]}/{DONE}" in names}
    if tags:
        chosen = max(tags, key=_step) if step is None else next((t for t in tags if _step(t) == step), None)
        if chosen is not None:
            table = vendor.table(store, chosen, rules)
            kept = table.values.pop("user_content", ((), {}))[1]
            tree = kept.get(_TREE, {}) if isinstance(kept, Mapping) else {}
            return CheckpointSource("vendor", _step(chosen), table, tree, _FOREIGN)
    return _own(Checkpoints(store), step, url)


_FOREIGN = "this format has no digests: damage to it may stay unnoticed"


def _of_step(store: Store) -> str:
    """Why damage may stay unnoticed in a folder of DCP's that may be one step of trnlab's own, or nothing. One
    of trnlab's own is whole, or it is an error. Raises OSError, RunError (TRN532)."""
    if not store.exists(record_of(0)):
        return _FOREIGN
    try:
        found = FinishedCheckpoint(store, "")
    except FileNotFoundError:
        raise RunError(
            "the checkpoint was never finished", code="TRN532", got=store.url, remedy="take another checkpoint"
        ) from None
    found.require_whole()
    return "" if found.covered else OLDER


def _usual_names(table: CheckpointTable) -> CheckpointTable:
    """With what PyTorch's examples call `optim` as `optimizer`."""

    def usual(name: str) -> str:
        return f"optimizer{name.removeprefix('optim')}" if name.startswith("optim.") else name

    table.entries = {usual(n): e for n, e in table.entries.items()}
    for entry in table.entries.values():
        entry.path = ("optimizer", *entry.path[1:]) if entry.path[0] == "optim" else entry.path
    table.values = {
        usual(n): (("optimizer", *p[1:]) if p[0] == "optim" else p, value) for n, (p, value) in table.values.items()
    }
    return table


def _own(kept: Checkpoints, step: int | None, url: str) -> CheckpointSource:
    done = [c.step for c in kept.all() if c.done and (step is None or c.step == step)]
    if not done:
        raise UsageError(
            "there is no finished checkpoint" + (f" of step {step}" if step is not None else ""),
            code="TRN534",
            got=url,
            limit="trnlab's, DCP's (.metadata), the vendor's (dp_rank_...), Hugging Face's (.safetensors)",
            remedy="see `trnlab checkpoint ls`",
        )
    found = kept.finished(done[0])
    found.require_whole()
    tree, _ = state_files.opened(found.files(0, state_files.FILE))
    if not isinstance(tree, Mapping):
        raise RunError("the checkpoint has no state by name", code="TRN543", got=type(tree).__name__, limit=url)
    table = dcp.of_checkpoint(kept, done[0])
    return CheckpointSource("trnlab", done[0], table, tree, "" if found.covered else OLDER)


def _step(tag: str) -> int:
    digits = re.findall(r"\d+", tag)
    return int(digits[-1]) if digits else 0


def reshard(
    found: CheckpointSource, to: Store, layout: ParallelDegrees, form: str, rules: ShardingRules
) -> Iterator[str]:
    """Write a checkpoint in a layout, as DCP's (and trnlab's) or the vendor's; yields the name of each tensor.

    Raises OSError, UsageError (TRN542), RunError (TRN543, TRN544).
    """
    require_model(found.table)
    stage = stages([*found.models(), *(n.removeprefix("model.") for n in found.table.same)], layout.pp)
    if form == "vendor":
        found.table.values["user_content"] = ("user_content",), {_TREE: dict(found.tree)}
        yield from vendor.write(found.table, to, f"step_{found.step}", layout, stage, rules)
        return
    writer = dcp.DcpWriter(to, found.step, layout.ranks)
    for name, entry in found.table.entries.items():
        _spread(found.table, writer, name, entry, layout, stage, rules)
        yield name
    for path, value in found.table.values.values():
        writer.put(0, path, value)
    for name, first in found.table.same.items():
        writer.same(name, ("model", name.removeprefix("model.")), first)
    writer.finish(found.tree)


def undone(store: Store, step: int) -> None:
    """What `reshard` wrote is not to be taken for whole. Raises OSError."""
    store.delete(f"{name_of(step)}/{DONE}", f"step_{step}/{DONE}")


def _spread(
    table: CheckpointTable,
    writer: dcp.DcpWriter,
    name: str,
    entry: TensorEntry,
    layout: ParallelDegrees,
    stage: Mapping[str, int],
    rules: ShardingRules,
) -> None:
    """Write each rank's slice of a tensor, once where several ranks have the same."""
    owner = _owner(table, entry)
    weight = table.entries.get(f"model.{owner}")
    alike = weight is not None and weight.shape == entry.shape
    dim = rules.dimension(owner, entry.shape) if alike and layout.tp > 1 else None
    written = set()
    for dp in range(layout.dp):
        for tp in range(layout.tp):
            part = cut(entry.shape, dim, (tp, layout.tp), (dp, layout.dp))
            if part in written or (0 in part[1] and 0 not in entry.shape):
                continue
            written.add(part)
            rank = layout.rank(RankPosition(dp, tp, stage.get(owner, 0)))
            writer.put(rank, entry.path, table.read(name, part), (entry.shape, part))


def _owner(table: CheckpointTable, entry: TensorEntry) -> str:
    """The parameter that a tensor is or belongs to."""
    if len(entry.path) >= 3 and entry.path[-3] == "state":
        return str(entry.path[-2])
    return str(entry.path[-1])


def require_model(table: CheckpointTable) -> None:
    """Raises RunError (TRN543) for a checkpoint without tensors of a model: what would be written says nothing."""
    if not any(entry.path[0] == "model" for entry in table.entries.values()):
        heads = sorted({str(entry.path[0]) for entry in table.entries.values()})
        raise RunError(
            "the checkpoint has no model",
            code="TRN543",
            limit="tensors called model.<name>",
            got=", ".join(heads[:6]),
            remedy="save the model under the name model",
        )


def same(a: CheckpointTable, b: CheckpointTable) -> list[str]:
    """Names of tensors that are not bit for bit in both; tied weights may be one tensor here and two there."""
    wrong = sorted({*a.entries, *a.same} ^ {*b.entries, *b.same})
    for name in {*a.entries, *a.same} & {*b.entries, *b.same}:
        x, y = a.read(name), b.read(name)
        if x.dtype != y.dtype or x.shape != y.shape or not torch.equal(_bits(x), _bits(y)):
            wrong.append(name)
    return wrong


def _bits(tensor: Any) -> Any:
    return tensor.contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0).byte()

# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of scripts that know nothing of them: `trnlab run --checkpoint`, for steps of `compile_step`.

A script that starts again begins at its first line, with new weights and the first batch. So its steps are replayed:
the first N calls of `compile_step`'s steps compute nothing and return what they returned before, which the checkpoint
has. The script's own code around them runs as it did: its loader deals the same batches, its scheduler steps. At the
end of call N the state goes back into models and optimizers, and the script trains on.

Each replayed call is compared with the first run: which step was called, the values of its batch, and the state of
the generators of random numbers. A script that does not repeat itself is told so and stopped (TRN535), for what it
would compute is not the same run.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from trnlab.errors import RunError
from trnlab.frontends.torch.checkpoints import BackgroundWriter, newest, of_this_rank, went_on
from trnlab.frontends.torch.device.dlpack import as_neuron
from trnlab.frontends.torch.draws import new_seed
from trnlab.frontends.torch.pytorch import pytree
from trnlab.frontends.torch.saving import training_state as states
from trnlab.runtime.checkpoint_plan import CheckpointPlan
from trnlab.runtime.notices import say

_EXACT = 1 << 53  # integers up to here are exact in float64


class StepReplay:
    """The calls of all compiled steps of a process, in order; see the module."""

    def __init__(self, wanted: CheckpointPlan) -> None:
        kept = of_this_rank(wanted)
        self.every, self.calls, self._writer = wanted.every, 0, BackgroundWriter(kept)
        self._steps: list[Any] = []
        self._forms: list[list[Any]] = []  # of each step: what its results look like
        self._calls: list[list[int]] = []  # which step, checksums of batch and generators, seeds that were drawn
        self._results: list[list[float]] = []
        found = newest(kept)
        self._draws = states.Draws()
        self._saved: Any = found[1] if found is not None else None
        self.until = found[0] if found is not None else 0
        if self._saved is not None:
            self._forms = self._saved["forms"]
            self._calls = self._saved["calls"].tolist()
            self._results = self._saved["results"].tolist()
            say(f"steps 1 to {self.until} are replayed from {kept.store.url}: nothing of them is computed")

    def call(self, step: Any, batch: tuple[Any, ...]) -> Any:
        """A call of a compiled step: replayed, or made and remembered."""
        if not any(step is known for known in self._steps):
            self._steps.append(step)
        which = next(i for i, known in enumerate(self._steps) if known is step)
        about = [which, states.fingerprint(pytree.tree_leaves(batch)), self._draws.fingerprint()]
        self.calls += 1
        if self.calls <= self.until:
            return self._replayed(step, about)
        result = step.train(batch)
        seeds = sum(role.kind == "seed" for role in step.captured.inputs)
        self._remember(which, result)
        self._calls.append([*about, seeds])
        if self.calls % self.every == 0:
            self._save()
        return result

    # -- within -------------------------------------------------------------------------------------------------
    def _replayed(self, step: Any, about: list[int]) -> Any:
        *before, seeds = self._calls[self.calls - 1]
        for what, was, now in zip(("compiled step", "batch", "state of random numbers"), before, about):
            if was != now:
                raise RunError(
                    f"the script does not repeat itself: the {what} of step {self.calls} is not that of before",
                    code="TRN535",
                    limit=self._writer.kept.store.url,
                    remedy="seed everything that the script draws, keep its data and arguments, or use "
                    "trnlab.checkpoint in it",
                )
        for _ in range(seeds):
            new_seed()
        step.optimizer._opt_called = True
        result = self._result(about[0])
        if self.calls == self.until:
            self._restore()
        return result

    def _result(self, which: int) -> Any:
        kinds, spec = self._forms[which]
        values = self._results[self.calls - 1]
        leaves = [_leaf(kind, value) for kind, value in zip(kinds, values)]
        return pytree.tree_unflatten(leaves, pytree.treespec_loads(spec))

    def _restore(self) -> None:
        saved = self._saved["steps"]
        if len(saved) != len(self._steps):
            raise states.other("compiled steps", str(len(saved)), str(len(self._steps)))
        for step, state in zip(self._steps, saved):
            states.put_back(step.model, state["model"], "model")
            states.put_back(step.optimizer, state["optimizer"], "optimizer")
            step.load_state_dict(state["step"])
        states.set_generators(self._saved["generators"])
        self._saved = None
        went_on(self.until)
        say(f"going on after step {self.until}")

    def _remember(self, which: int, result: Any) -> None:
        leaves, spec = pytree.tree_flatten(result)
        kinds = [_kind(leaf) for leaf in leaves]
        try:
            form = [kinds, pytree.treespec_dumps(spec)]
        except NotImplementedError:
            form = [[None], ""]
        if which == len(self._forms):
            self._forms.append(form)
        if None in kinds or form != self._forms[which]:
            raise RunError(
                "a compiled step returns more than numbers, or not always the same, and cannot be replayed",
                code="TRN533",
                got=", ".join(type(leaf).__name__ for leaf in leaves)[:80],
                limit="scalar tensors and numbers",
                remedy="return the loss alone, or use trnlab.checkpoint",
            )
        self._results.append([float(leaf) for leaf in leaves])

    def _save(self) -> None:
        buffers = self._writer.begin()
        started = time.perf_counter()
        of_steps = [
            {
                "model": states.taken(s.model, buffers=buffers),
                "optimizer": states.taken(s.optimizer, states.names_of(s.model), buffers),
                "step": states.taken(s),
            }
            for s in self._steps
        ]
        widest = max(map(len, self._results))
        results = [row + [0.0] * (widest - len(row)) for row in self._results]
        state = {
            "steps": of_steps,
            "forms": self._forms,
            "calls": torch.tensor(self._calls, dtype=torch.int64),
            "results": torch.tensor(results, dtype=torch.float64),
            "generators": states.generators(),
        }
        self._writer.seconds = time.perf_counter() - started
        self._writer.save(self.calls, state)


def _kind(leaf: Any) -> str | None:
    """What a result is: the format and place of a scalar tensor, or a Python number; None for all else."""
    if isinstance(leaf, Tensor) and leaf.dim() == 0 and not leaf.is_complex():
        if not leaf.is_floating_point() and abs(int(leaf)) > _EXACT:
            return None
        return f"{str(leaf.dtype).removeprefix('torch.')} {leaf.device.type}"
    return type(leaf).__name__ if type(leaf) in (int, float, bool) else None


def _leaf(kind: str, value: float) -> Any:
    plain = {"int": int, "float": float, "bool": bool}.get(kind)
    if plain is not None:
        return plain(value)
    dtype, device = kind.split()
    tensor = torch.tensor(value, dtype=getattr(torch, dtype))
    return as_neuron(tensor) if device == "neuron" else tensor

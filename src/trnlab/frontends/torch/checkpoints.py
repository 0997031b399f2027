# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of training scripts: a few lines in the script, or none where the script's steps are `compile_step`'s.

    from trnlab import checkpoint

    run = checkpoint.resume(model=model, optimizer=optimizer, scheduler=scheduler)
    for x, y in run.batches(loader, epochs=3):
        loss = step(x, y)
        scheduler.step()
        run.stepped()

`trnlab run --checkpoint s3://team/run7 --every 200 train.py` says where and how often. Without these lines, a script
whose steps are those of `compile_step` is replayed: see `StepReplay`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trnlab.errors import RunError, UsageError
from trnlab.frontends.torch.data import Loader
from trnlab.frontends.torch.parallel.agreement import among_ranks
from trnlab.frontends.torch.saving import state_files
from trnlab.frontends.torch.saving import training_state as states
from trnlab.frontends.torch.saving.portable import elsewhere
from trnlab.runtime import session
from trnlab.runtime.checkpoint_plan import CheckpointPlan, CheckpointUse, plan
from trnlab.runtime.notices import say
from trnlab.runtime.script import on_failure
from trnlab.storage import open_store
from trnlab.storage.checkpoints import Checkpoints, pieces
from trnlab.storage.finished_checkpoint import OLDER

_RESERVED = ("step", "epoch", "position", "epoch_start", "generators", "loader")


class BackgroundWriter:
    """Writes states in a thread of its own; what holds up training is their copy to the host.

    seconds: of that copy, the latest.
    """

    def __init__(self, kept: Checkpoints) -> None:
        self.kept, self.seconds, self.buffers = kept, 0.0, states.Buffers()
        self._thread: threading.Thread | None = None
        on_failure.append(lambda _: kept.failed.set())

    def save(self, step: int, state: Any) -> None:
        """Write a state that is on the host already, once the one before it is written."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(step, state), name="checkpoint")
        self._thread.start()

    def begin(self) -> states.Buffers:
        """Memory for a copy of the state, once the one before it is written."""
        self.wait()
        self.buffers.begin()
        return self.buffers

    def wait(self) -> None:
        """Until what was given to `save` is written, or has failed."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, step: int, state: Any) -> None:
        try:
            files, about = state_files.packed(state)
            CheckpointUse.latest_bytes = sum(len(part) for parts in files.values() for part in pieces(parts))
            self.kept.save(step, files, about)
        except RunError as error:  # training goes on: the checkpoints before it are kept
            say(f"{error.code}: {error.what}")


class Run:
    """Training that goes on where it was; see the module. step: how many steps are done, in all runs together."""

    def __init__(self, kept: Checkpoints | None, every: int, objects: dict[str, Any]) -> None:
        taken = [name for name in objects if name in _RESERVED]
        if taken:
            raise UsageError(
                f"{taken[0]!r} is a name of the checkpoint's own",
                code="TRN534",
                limit=", ".join(_RESERVED),
                remedy="choose another name",
            )
        self.step, self.every = 0, every
        self._objects, self._writer = objects, None if kept is None else BackgroundWriter(kept)
        self._epoch, self._position, self._epoch_start = 0, 0, states.generators()
        self._loader: Loader | None = None  # that knows its place
        self._loader_state: dict[str, Any] | None = None
        if kept is not None:
            self._restore(kept)

    @property
    def stall_s(self) -> float:
        """How long the copy of the latest checkpoint to the host held up training, seconds."""
        return self._writer.seconds if self._writer is not None else 0.0

    def batches(self, loader: Iterable[Any], epochs: int = 1) -> Iterator[Any]:
        """The batches of so many epochs in all, from where the run is.

        Of an epoch that was left half way the loader is made to shuffle as it did, and batches that were used are
        passed over: it must draw from PyTorch's, NumPy's or Python's own generators alone, in this process. A
        `trnlab.data.loader` goes to its place, and nothing is read twice.
        """
        if isinstance(loader, Loader):
            yield from self._placed(loader, epochs)
            return
        while self._epoch < epochs:
            sampler: Any = getattr(loader, "sampler", None)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self._epoch)
            yield from self._epoch_of(loader)
            self._epoch, self._position = self._epoch + 1, 0

    def stepped(self) -> None:
        """A step is done; writes a checkpoint where one is due."""
        self.step += 1
        if self.step % self.every == 0:
            self.save()

    def save(self) -> None:
        """Write a checkpoint of now. Training waits for the one before to be written, and for a copy to the host."""
        if self._writer is None:
            return
        buffers, names = self._writer.begin(), states.names_of(*self._objects.values())
        started = time.perf_counter()
        state = {name: states.taken(thing, names, buffers) for name, thing in self._objects.items()}
        state |= {
            "step": self.step,
            "epoch": self._epoch,
            "position": self._position,
            "epoch_start": self._epoch_start,
            "generators": states.generators(),
        }
        state |= {"loader": self._loader.state_dict()} if self._loader is not None else {}
        self._writer.seconds = time.perf_counter() - started
        self._writer.save(self.step, state)

    def wait(self) -> None:
        """Until everything is written; a script that ends waits by itself."""
        if self._writer is not None:
            self._writer.wait()

    # -- within -------------------------------------------------------------------------------------------------
    def _placed(self, loader: Loader, epochs: int) -> Iterator[Any]:
        """The batches of a loader that knows its place, and says itself how long it was waited for."""
        if self._loader is None and self._loader_state is not None:
            loader.load_state_dict(self._loader_state)
        self._loader = loader
        yield from loader.until(epochs)

    def _epoch_of(self, loader: Iterable[Any]) -> Iterator[Any]:
        used, now = self._position, states.generators()
        if used:
            states.set_draws(self._epoch_start)
        else:
            self._epoch_start = now
        iterator = iter(loader)
        for _ in range(used):
            next(iterator, None)
        if used:
            states.set_draws(now)
        for batch in _timed(iterator):
            self._position += 1
            yield batch

    def _restore(self, kept: Checkpoints) -> None:
        found = newest(kept, self._objects)
        if found is None:
            return
        step, state = found
        for name, thing in self._objects.items():
            if name not in state:
                raise states.other(name, ", ".join(n for n in state if n not in _RESERVED), "not in it")
            states.put_back(thing, state[name], name)
        self.step, self._epoch, self._position = step, state["epoch"], state["position"]
        went_on(step)
        self._epoch_start = state["epoch_start"]
        self._loader_state = state.get("loader")
        states.set_generators(state["generators"])
        say(f"going on after step {step}, from {kept.store.url}")


def resume(place: str | None = None, *, every: int | None = None, keep: int | None = None, **objects: Any) -> Run:
    """Training with checkpoints of `objects`: modules, optimizers, schedulers, compiled steps, what has `state_dict`.

    place: a folder or URL; by default what `trnlab run --checkpoint` (TRNLAB_CHECKPOINT) says, and without it nothing
    is kept. every: steps between two; keep: how many stay. Where there is a checkpoint its state is put into the
    objects. Raises UsageError (TRN534) for numbers that cannot be, RunError: TRN530 for a checkpoint of another
    script, TRN531 where the store cannot be read, TRN532 where none is whole.
    """
    usual = plan() or CheckpointPlan(place or "")
    chosen = CheckpointPlan(
        place or usual.place, usual.every if every is None else every, usual.keep if keep is None else keep
    )
    CheckpointUse.by = "script"
    return Run(of_this_rank(chosen) if chosen.place else None, chosen.every, objects)


def _timed(iterator: Iterator[Any]) -> Iterator[Any]:
    """The same batches; the session's run hears how long each was waited for."""
    while True:
        started = time.perf_counter()
        try:
            batch = next(iterator)
        except StopIteration:
            return
        finally:
            now = session.active()
            if now is not None and now.run is not None:
                now.run.waited(time.perf_counter() - started)
        yield batch


def went_on(step: int) -> None:
    """Tell the session how many steps were done before this process began."""
    now = session.active()
    if now is not None:
        now.counters.resumed = step


def of_this_rank(chosen: CheckpointPlan) -> Checkpoints:
    """The checkpoints of a plan, for the rank that the environment says this process is."""
    rank, ranks = (int(os.environ.get(name) or default) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    agreement = among_ranks(rank, ranks)
    return Checkpoints(
        open_store(chosen.place), rank, ranks, chosen.keep, agreement=agreement, index=state_files.index
    )


def newest(kept: Checkpoints, objects: Mapping[str, Any] | None = None) -> tuple[int, Any] | None:
    """The newest whole checkpoint, read; what is wrong with newer ones is said.

    objects: what it is to be put into: with them it may be of any other layout, whose slices are put together.
    """
    found = kept.load_newest(other_ranks=objects is not None)
    for line in kept.messages:
        say(line)
    kept.messages.clear()
    if found is None:
        return None
    step, files = found
    if objects is None or not elsewhere.needed(kept, step, files):
        return step, state_files.unpacked(files)
    say(f"the checkpoint of step {step} is of another layout: its slices are put together for {kept.ranks} ranks")
    return step, elsewhere.state(kept, step, files, objects)


def load(place: str, step: int | None = None, **objects: Any) -> int:
    """Put a checkpoint's state into objects of any layout, such as the model alone; returns its step.

    place: a folder or URL of trnlab's checkpoints; step: the newest for None. A checkpoint of `from-hf` has a model
    and nothing else. Raises RunError: TRN530, TRN532, TRN543; UsageError (TRN534) where there is none.
    """
    kept = Checkpoints(open_store(place))
    done = [c.step for c in kept.all() if c.done and (step is None or c.step == step)]
    if not done:
        raise UsageError(
            "there is no finished checkpoint", code="TRN534", got=place, remedy="see trnlab checkpoint ls"
        )
    chosen = kept.finished(done[0])
    chosen.require_whole()
    if not chosen.covered:
        say(f"the checkpoint of step {done[0]} was {OLDER}")
    found = elsewhere.state(kept, done[0], chosen.files(0, state_files.FILE), objects)
    for name, thing in objects.items():
        states.put_back(thing, found[name], name)
    return done[0]

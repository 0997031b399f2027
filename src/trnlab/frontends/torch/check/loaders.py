# SPDX-License-Identifier: Apache-2.0
"""Which data loaders feed the training steps, whether their last batch is smaller than the others, and how many
batches of `trnlab.data` a step takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from trnlab.errors import Location
from trnlab.frontends.torch import data
from trnlab.frontends.torch.findings.locations import here, parse
from trnlab.frontends.torch.findings.survey import Survey
from trnlab.frontends.torch.pytorch.loading import Batches
from trnlab.porting.result import WARNING


class Loaders:
    """Loaders of the script. They load in this process: what workers made would have to come back with values."""

    def __init__(self) -> None:
        self._made: dict[int, Location | None] = {}
        self._latest: Any = None
        self._used: dict[int, Any] = {}
        self._given: Counter[data.Loader] = Counter()  # since the last step

    def in_step(self) -> None:
        """A training step is over: the loader that gave the latest batch feeds training."""
        if self._latest is not None:
            self._used[id(self._latest)] = self._latest

    def taken(self) -> Counter[data.Loader]:
        """Batches that loaders of `trnlab.data` gave since this was last asked."""
        given, self._given = self._given, Counter()
        return given

    def _hears(self, loader: data.Loader) -> None:
        self._given[loader] += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within the block loaders are watched."""
        made, begun, gave = DataLoader.__init__, DataLoader.__iter__, Batches.__next__

        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            made(loader, *args, **kwargs)
            self._made[id(loader)] = parse(here(sys._getframe(1)) or "")

        def begin(loader: Any) -> Any:
            loader.num_workers = loader.timeout = 0
            iterator = begun(loader)
            iterator.trnlab_loader = loader
            return iterator

        def give(iterator: Any) -> Any:
            self._latest = getattr(iterator, "trnlab_loader", None)
            return gave(iterator)

        DataLoader.__init__, DataLoader.__iter__ = make, begin  # type: ignore[method-assign,assignment]
        Batches.__next__ = give  # type: ignore[method-assign]
        data.heard.append(self._hears)
        try:
            yield
        finally:
            data.heard.remove(self._hears)
            DataLoader.__init__, DataLoader.__iter__ = made, begun  # type: ignore[method-assign]
            Batches.__next__ = gave  # type: ignore[method-assign]

    def gave_its_last(self, shapes: Sequence[str]) -> bool:
        """Whether a batch of these shapes is the latest loader's last and smaller one."""
        rest = _last_batch(self._latest)[1] if self._latest is not None else 0
        self.in_step()
        return bool(rest) and all(f"[{rest}," in s or f"[{rest}]" in s for s in shapes)

    def tell(self, survey: Survey) -> None:
        """Note the loaders of training whose last batch is smaller."""
        for loader in self._used.values():
            size, rest = _last_batch(loader)
            if rest:
                survey.note(
                    "TRN254",
                    f"the last batch of an epoch has {rest} samples, the others {size}: the step is compiled twice",
                    self._made.get(id(loader)),
                    why=f"{len(loader.dataset)} samples do not divide by {size}, and drop_last is False",
                    do="DataLoader(..., drop_last=True), or pad the last batch",
                    severity=WARNING,
                )


def _last_batch(loader: Any) -> tuple[int, int]:
    """Batch size, and size of the last batch where it is smaller, else 0."""
    size = loader.batch_size
    if size is None or loader.drop_last or isinstance(loader.dataset, IterableDataset):
        return 0, 0
    samples = len(loader.sampler)
    return size, samples % size if samples > size else 0

# SPDX-License-Identifier: Apache-2.0
"""Every `tf.function` and every Keras loop of a script that nobody edited, on the simulated chip (ADR 101).

A `tf.function` keeps what TensorFlow makes of it: when it is traced, its variables, its gradients. What it executes
in the end is a function of tensors and variables, forward or backward; that is where `install_functions` stands.
Keras' loops give their functions an iterator, which the chip does not have: of them a batch's step is taken
(`keras_model`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from trnlab import host_ops
from trnlab.errors import NumericsError, TrnlabError, UnsupportedOpError
from trnlab.frontends.common import engine
from trnlab.frontends.unedited import LEFT
from trnlab.runtime.notices import say

_installed: list[Callable[[], None]] = []
_told: set[str] = set()
_KINDS = ("train", "test", "predict")


def install_functions() -> None:
    """Take the functions of TensorFlow that are called from now on to the chip."""
    from tensorflow.python.eager.polymorphic_function import atomic_function

    _replace(atomic_function.AtomicFunction, "call_flat", _call_flat)


def install_keras() -> None:
    """Take what Keras' loops do with a batch to the chip, on its TensorFlow backend; on JAX's `jax.jit` does that."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    for kind in _KINDS:
        _replace(TensorFlowTrainer, f"make_{kind}_function", functools.partial(_make_function, kind))


def uninstall() -> None:
    """Leave what is called, or made, from now on to TensorFlow."""
    while _installed:
        _installed.pop()()


@contextmanager
def installed() -> Iterator[None]:
    """Within the block functions of TensorFlow and loops of Keras run on the chip."""
    install_functions()
    install_keras()
    try:
        yield
    finally:
        uninstall()


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = vars(owner)[name]
    setattr(owner, name, functools.wraps(original)(make(original)))
    _installed.append(lambda: setattr(owner, name, original))


def _tell(name: str, error: TrnlabError | str) -> None:
    """Say, once, that the host runs a function, and why."""
    if name not in _told:
        _told.add(name)
        place = getattr(error, "where", None)
        where = f", at {place.file}:{place.line}" if place is not None else ""
        shown = f"{error.code}: {error.what.splitlines()[0]}" if isinstance(error, TrnlabError) else error
        say(f"{LEFT}: {name!r} runs on the host: {shown}{where}")


# -- tf.function -----------------------------------------------------------------------------------------------------


def _call_flat(original: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors and handles of variables is called: from Python, as a program; from another, as ever."""
    from tensorflow.python.eager import context

    def call_flat(self: Any, *args: Any) -> Any:
        from trnlab.frontends.tensorflow import executed  # with Keras, which may be what imports TensorFlow

        if not context.executing_eagerly() or executed.is_tracing():
            return original(self, *args)
        follower = engine.follower()
        try:
            if follower is None:
                return executed.run(self, args)
            executed.follow(self, args, follower)
            return original(self, *args)
        except executed.NotWorthIt:
            return original(self, *args)
        except (UnsupportedOpError, executed.NotRepresentable) as error:
            _tell(executed.name_of(self), error if isinstance(error, TrnlabError) else str(error))
        except NumericsError as error:
            if error.code != "TRN211":
                raise
            _tell(executed.name_of(self), error)
        host_ops.current().add(f"tf.function({executed.name_of(self)})")
        return original(self, *args)

    return call_flat


# -- Keras -----------------------------------------------------------------------------------------------------------


def _make_function(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """What makes the function that runs one batch, or as many as one execution has steps."""
    from trnlab.frontends.tensorflow.keras_model import _maker, _set

    attribute = f"{kind}_function"

    def make(self: Any, force: bool = False) -> Any:
        if getattr(self, attribute) is not None and not force:
            return getattr(self, attribute)
        obstacle = _obstacle(self)
        if obstacle:
            if obstacle is not _EAGERLY:
                _tell(f"{self.name}.fit", obstacle)
                _told.update(_KERAS_OWN)
            return original(self, force)
        ours = _maker(kind)(self, force=True)
        _set(self, attribute, _Either(self, kind, ours, functools.partial(original, self, True)))
        return getattr(self, attribute)

    return make


_KERAS_OWN = ("one_step_on_data", "multi_step_on_iterator", "multi_step_on_data")
_EAGERLY = "run_eagerly asks for operators one by one"


def _obstacle(model: Any) -> str:
    """Why the steps of a model are the host's; empty where they are not."""
    import tensorflow as tf

    if model.run_eagerly:
        return _EAGERLY
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is not None and strategy is not tf.distribute.get_strategy():
        return f"its steps are spread by {type(strategy).__name__}"
    if strategy is not None and strategy.num_replicas_in_sync > 1:
        return f"its steps are spread by {type(strategy).__name__}"
    return ""


class _Either:
    """A model's function of batches on the chip, until it refuses; from then on, with the same batch, Keras' own."""

    def __init__(self, model: Any, kind: str, ours: Callable[[Any], Any], make_theirs: Callable[[], object]) -> None:
        self.model, self.kind, self.ours, self.make_theirs = model, kind, ours, make_theirs

    def __call__(self, batches: Any) -> Any:
        from trnlab.frontends.tensorflow.keras_model import _set

        seen: list[Any] = []
        given = batches if isinstance(batches, list) else _noted(batches, seen)
        try:
            return self.ours(given)
        except UnsupportedOpError as error:
            _tell(f"{self.model.name}.{self.kind}_step", error)
            _told.update(_KERAS_OWN)
        _set(self.model, f"{self.kind}_function", None)
        self.make_theirs()
        theirs = getattr(self.model, f"{self.kind}_function")
        return theirs(batches if isinstance(batches, list) else iter(seen))


def _noted(batches: Any, seen: list[Any]) -> Iterator[Any]:
    for batch in batches:
        seen.append(batch)
        yield batch

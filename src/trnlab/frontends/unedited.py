# SPDX-License-Identifier: Apache-2.0
"""What a script compiles by itself with JAX, TensorFlow or Keras goes to the chip, without a line that says so.

Nothing of them is imported before the script does it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from trnlab.errors import UsageError
from trnlab.frontends.after_import import when_imported
from trnlab.runtime.session import Session

JIT = "TRNLAB_JIT"
CHIP, HOST = "chip", "host"
UNKNOWN, LEFT = "TRN292", "TRN293"  # a framework that is of another version; a function that the host runs
_KERAS_ON_TORCH = "KERAS_TORCH_DEVICE"  # Keras' own name for it


@contextmanager
def reaching_the_chip(session: Session, environment: Mapping[str, str] = os.environ) -> Iterator[None]:
    """Within the block `jax.jit`, `tf.function` and Keras' loops use the chip of the session, if somebody chose one.

    Raises UsageError (TRN291) where TRNLAB_JIT says something else than where compiled functions run.
    """
    place = environment.get(JIT) or CHIP
    if place not in (CHIP, HOST):
        raise UsageError(
            f"{JIT} does not say where functions run that a script compiles",
            code="TRN291",
            limit=f"{CHIP} or {HOST}",
            got=place,
            remedy="set it to one of these, or unset it",
        )
    if place == HOST or not session.chosen:
        yield
        return
    undo: list[Callable[[], object]] = []

    def entered(framework: str, name: str, *arguments: Any) -> None:
        module = import_module(f"trnlab.frontends.{framework}.everywhere")
        undo.append(module.uninstall)
        getattr(module, name)(*arguments)

    undo.append(when_imported("jax", lambda _: entered("jax", "install", session)))
    undo.append(when_imported("tensorflow", lambda _: entered("tensorflow", "install_functions")))
    undo.append(when_imported("keras", lambda _: entered("tensorflow", "install_keras")))
    mine = environment is os.environ and _KERAS_ON_TORCH not in os.environ
    if mine:
        os.environ[_KERAS_ON_TORCH] = "neuron"
    try:
        yield
    finally:
        if mine:
            del os.environ[_KERAS_ON_TORCH]
        for each in undo:
            each()

# SPDX-License-Identifier: Apache-2.0
"""What a script compiles by itself with JAX, TensorFlow or Keras goes to the chip, without a line that says so.

`install` is called before a script runs (`trnlab run`), and does nothing until the script imports one of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from trnlab.errors import UsageError
from trnlab.frontends.after_import import when_imported
from trnlab.runtime.session import Session

JIT = "TRNLAB_JIT"
CHIP, HOST = "chip", "host"
_KERAS_ON_TORCH = "KERAS_TORCH_DEVICE"  # Keras' own name for it


def install(session: Session, environment: Mapping[str, str] = os.environ) -> None:
    """From here on `jax.jit`, `tf.function` and Keras' loops use the chip of the session, if somebody chose one.

    Raises UsageError (TRN291) where TRNLAB_JIT says something else than where compiled functions run.
    """
    place = environment.get(JIT) or CHIP
    if place not in (CHIP, HOST):
        raise UsageError(
            f"{JIT} does not say where functions run that a script compiles", code="TRN291", limit=f"{CHIP} or {HOST}",
            got=place, remedy="set it to one of these, or unset it",
        )  # fmt: skip
    if place == HOST or not session.chosen:
        return
    when_imported("jax", lambda: _call("jax", "install", session))
    when_imported("tensorflow", lambda: _call("tensorflow", "install_functions"))
    when_imported("keras", lambda: _call("tensorflow", "install_keras"))
    os.environ.setdefault(_KERAS_ON_TORCH, "neuron")


def _call(framework: str, name: str, *arguments: Any) -> None:
    getattr(import_module(f"trnlab.frontends.{framework}.everywhere"), name)(*arguments)

# SPDX-License-Identifier: Apache-2.0
"""TensorFlow 2 and Keras 3 on the simulated chip.

    import trnlab.frontends.tensorflow as neuron

    step = neuron.compile_step(model, loss, optimizer)     # loss = step(x, y)
    neuron.on_chip(model)                                  # model.fit, evaluate and predict run on the chip

    @neuron.function                                       # in place of tf.function(jit_compile=True)
    def body(x): ...

What is here loads TensorFlow on first use.
"""

from importlib import import_module
from typing import Any

_HOME = {
    "compile_step": "step",
    "TrainStep": "step",
    "on_chip": "keras_model",
    "on_host": "keras_model",
    "function": "chip_function",
    "ChipFunction": "chip_function",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)

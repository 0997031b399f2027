# SPDX-License-Identifier: Apache-2.0
"""Dynamo and AOTAutograd: how `torch.compile` calls a backend, and what it asks before compiled code runs again."""

from __future__ import annotations

from typing import Any

import torch
from functorch.compile import (  # type: ignore[import-untyped]
    make_boxed_func,
    min_cut_rematerialization_partition,
)
from torch._dynamo import convert_frame, nonstrict_trace, symbolic_convert
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, CallFunctionNoArgsSource, ImportSource
from torch._guards import CompileContext, TracingContext

__all__ = [
    "GRAPH_BREAK",
    "REASONS_AGAIN",
    "CompileContext",
    "OptimizedModule",
    "TracingContext",
    "aot_autograd",
    "equal_again",
    "follow_recurrent_layers",
    "make_boxed_func",
    "min_cut_rematerialization_partition",
    "nonstrict_trace",
    "traced_inline",
]

# Where Dynamo itself finds what logs that it gives up on code, and why it compiles a function again.
GRAPH_BREAK: tuple[Any, str] = symbolic_convert.InstructionTranslatorBase, "log_graph_break"
REASONS_AGAIN: tuple[Any, str] = convert_frame, "get_and_maybe_log_recompilation_reasons"
OptimizedModule: Any = torch._dynamo.eval_frame.OptimizedModule
traced_inline: Any = torch._dynamo.external_utils.wrap_inline  # a function around another, which Dynamo goes into


def follow_recurrent_layers() -> None:
    """Else nn.LSTM and its like stay outside of compiled code, operator by operator."""
    torch._dynamo.config.allow_rnn = True


def equal_again(module: str, name: str) -> None:
    """While Dynamo compiles: what `module.name()` says now has to be equal whenever the compiled code is to run."""
    if TracingContext.try_get() is None:
        return
    package, *names = module.split(".")
    source: Any = ImportSource(package)
    for part in (*names, name):
        source = AttrSource(source, part)
    install_guard(CallFunctionNoArgsSource(source).make_guard(GuardBuilder.EQUALS_MATCH))

# SPDX-License-Identifier: Apache-2.0
"""torch_xla.utils.utils: made-up data, and what else scripts use of it."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from trnlab.frontends.torch.xla.arena import rewritten
from trnlab.frontends.torch.xla.names import refusing

__all__ = ["FnDataGenerator", "SampleGenerator", "get_free_tcp_ports", "getenv_as", "parallel_work", "timed"]


class SampleGenerator:
    """The same data so many times, as a loader."""

    def __init__(self, data: Any, sample_count: int) -> None:
        self._data, self._sample_count, self._count = data, sample_count, 0

    def __iter__(self) -> Iterator[Any]:
        return SampleGenerator(self._data, self._sample_count)

    def __len__(self) -> int:
        return self._sample_count

    def __next__(self) -> Any:
        if self._count >= self._sample_count:
            raise StopIteration
        self._count += 1
        return self._data

    next = __next__


class FnDataGenerator:
    """What a function makes, so many times: batches of shapes by their names."""

    def __init__(
        self,
        func: Callable[..., Any],
        batch_size: int,
        gen_tensor: Callable[..., Any],
        dims: Sequence[int] = (),
        count: int = 1,
    ) -> None:
        self._settings = func, batch_size, gen_tensor, dims, count
        self._count = 0

    def __len__(self) -> int:
        return self._settings[-1]

    def __iter__(self) -> Iterator[Any]:
        return FnDataGenerator(*self._settings)

    def __next__(self) -> Any:
        func, batch, gen, dims, count = self._settings
        if self._count >= count:
            raise StopIteration
        self._count += 1
        data = gen(batch, *dims)
        return data, func(data)


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """A variable of the environment as a number, a word or a truth."""
    told = os.environ.get(name)
    if told is None:
        return defval
    if type is bool:
        return told.lower() not in ("0", "false", "")
    return type(told)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether a variable of the environment is on."""
    return os.environ.get(name, default).upper() in ("ON", "1", "YES", "TRUE", "Y")


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.socket() for _ in range(n)]
    for each in sockets:
        each.bind(("", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def as_list(t: Any) -> Any:
    """A sequence as it is, and anything else in a tuple."""
    return t if isinstance(t, (list, tuple)) else (t,)


def list_copy_append(ilist: Sequence[Any], item: Any) -> list[Any]:
    """A list with one more."""
    return [*ilist, item]


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> None:
    """fn of every part of a nested value that is chosen."""
    rewritten(value, select_fn, lambda part: (fn(part), part)[1])


for_each_instance_rewrite = rewritten


def null_print(*args: Any, **named: Any) -> None:
    """Nothing."""


def eprint(*args: Any, **named: Any) -> None:
    """print(), to stderr."""
    print(*args, file=sys.stderr, **named)


def get_print_fn(debug: bool | None = None) -> Callable[..., None]:
    """How to print where XLA_DEBUG asks for it."""
    return eprint if (check_env_flag("XLA_DEBUG") if debug is None else debug) else null_print


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., None] = eprint) -> Any:
    """fn(), and how long it took."""
    start = time.monotonic()
    result = fn()
    printfn(f"{msg}{time.monotonic() - start:.3f}s")
    return result


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """fn over sequences, by several threads."""
    with ThreadPoolExecutor(num_workers) as pool:
        return list(pool.map(fn, *args))


__getattr__ = refusing(
    "torch_xla.utils.utils",
    "there is made-up data, and what reads the environment",
    ("Cleaner", "LazyProperty", "TmpFolder", "DataWrapper", "TimedScope", "shape", "flatten_nested_tuple"),
)

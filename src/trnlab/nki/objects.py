# SPDX-License-Identifier: Apache-2.0
"""Classes of kernels: every class under NKIObject is like a data class, decorated or not.

Source: section Class Support of nki/get-started/nki-language-guide.rst in aws-neuron/aws-neuron-sdk.
"""

from __future__ import annotations

import inspect
from typing import Any


class NKIObject:
    """Base of kernels' own classes: fields are what the class body names, with or without annotation.

    Where the class has no initializer of its own, fields are arguments in their order, None where the body gives no
    value; `__post_init__` runs after them.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """What `dataclass` finds: annotations of plain values of the body, and None for fields without a value."""
        super().__init_subclass__(**kwargs)
        known = inspect.get_annotations(cls)
        plain = {name: Any for name, value in vars(cls).items() if name not in known and _is_field(name, value)}
        if plain:
            cls.__annotations__ = known | plain
        for name in known.keys() - vars(cls).keys():
            setattr(cls, name, None)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = _fields(type(self))
        if len(args) > len(names):
            raise TypeError(f"{type(self).__name__} takes {len(names)} arguments, got {len(args)}")
        given = dict(zip(names, args)) | kwargs
        for name in dict.fromkeys([*names, *given]):
            setattr(self, name, given.get(name, getattr(type(self), name, None)))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Nothing, unless a class says otherwise."""


def _is_field(name: str, value: Any) -> bool:
    """Whether a name of a class body is data that `dataclass` takes as a default."""
    dunder = name.startswith("__") and name.endswith("__")
    descriptor = callable(value) or hasattr(type(value), "__get__")
    return not dunder and not descriptor and type(value).__hash__ is not None


def _fields(kind: type) -> list[str]:
    """Names of a class's fields, those of its bases first."""
    bases = [b for b in reversed(kind.__mro__) if b not in (NKIObject, object)]
    return list(dict.fromkeys(name for base in bases for name in inspect.get_annotations(base)))

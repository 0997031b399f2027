# SPDX-License-Identifier: Apache-2.0
"""What to say of a name that a stand-in does not have.

A name that callers are known to import and that has no counterpart is a class here: importing it, subclassing it and
asking `isinstance` of it work, since libraries do so at the top of files whose other parts are used; what is made of
it, or called on it, is refused. Any other name is refused where it is looked up, by an error that is an
AttributeError, too, since `hasattr` is how libraries ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any

from trnlab.errors import UsageError, did_you_mean

_DECORATORS = ("xla_call", "xla_hlo_call")  # of functions that build HLO


class NoCounterpartError(UsageError, AttributeError):
    """A name of the vendor's packages that is not here."""

    code = "TRN296"


class _Refused(type):
    """The type of names that are refused when they are used."""

    def __call__(cls, *args: Any, **named: Any) -> Any:
        if cls.decorates and len(args) == 1 and isinstance(args[0], FunctionType):  # type: ignore[attr-defined]
            return cls  # what was decorated at the top of a file is refused when it is called
        raise cls.refusal()  # type: ignore[attr-defined]

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise cls.refusal(name)  # type: ignore[attr-defined]


def refused(full_name: str, remedy: str, decorates: bool = False) -> type:
    """What a refused name stands for. full_name: with its module's. decorates: whether it is put before functions."""

    def no(attribute: str = "") -> NoCounterpartError:
        return NoCounterpartError(
            f"{full_name}{'.' * bool(attribute)}{attribute} has no counterpart in trnlab", remedy=remedy
        )

    module, _, name = full_name.rpartition(".")
    told = {
        "__module__": module,
        "__doc__": f"Refused: {remedy}.",
        "refusal": staticmethod(no),
        "decorates": decorates,
    }
    return _Refused(name, (), told)


def is_refused(value: object) -> bool:
    """Whether a value stands for a name that is refused when it is used."""
    return isinstance(value, _Refused)


def refusing(
    module: str, remedy: str, names: Iterable[str] | Mapping[str, str] = (), known: Iterable[str] = ()
) -> Callable[[str], Any]:
    """A module's __getattr__: `names` are refused when they are used, all others when they are looked up.

    names: with a remedy of their own where it is a mapping. known: what the module has, for names that are misspelt.
    """
    made: dict[str, type] = {}

    def missing(name: str) -> Any:
        if name in names:
            own = names[name] if isinstance(names, Mapping) else remedy
            return made.setdefault(name, refused(f"{module}.{name}", own, name in _DECORATORS))
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoCounterpartError(
            f"{module}.{name} has no counterpart in trnlab", remedy=did_you_mean(name, known, remedy) or remedy
        )

    return missing

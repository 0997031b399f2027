# SPDX-License-Identifier: Apache-2.0
"""`import nki` and its relatives resolve to trnlab in this process."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES = {
    "nki": "trnlab.nki",
    "nki.collectives": "trnlab.nki.collectives",
    "nki.isa": "trnlab.nki.isa",
    "nki.isa.constants": "trnlab.nki.enums",
    "nki.dtype": "trnlab.nki.dtype",
    "nki.experimental": "trnlab.nki.experimental",
    "nki.framework": "trnlab.nki.framework",
    "nki.framework.compiled": "trnlab.nki.framework.compiled",
    "nki.language": "trnlab.nki.language",
    "nki.language.constants": "trnlab.nki.neuronxcc.constants",
    "nki.typing": "trnlab.nki.typing",
    "neuron_dtypes": "trnlab.nki.neuron_dtypes",
    "neuronxcc": "trnlab.nki.neuronxcc.root",
    "neuronxcc.nki": "trnlab.nki.neuronxcc",
    "neuronxcc.nki._pre_prod_kernels": "trnlab.nki.neuronxcc.pre_prod_kernels",
    "neuronxcc.nki._pre_prod_kernels.collectives": "trnlab.nki.neuronxcc.pre_prod_kernels",
    "neuronxcc.nki._private": "trnlab.nki.neuronxcc.private_api",
    "neuronxcc.nki._private.private_api": "trnlab.nki.neuronxcc.private_api",
    "neuronxcc.nki._private_kernels": "trnlab.nki.neuronxcc.private_kernels",
    "neuronxcc.nki._private_kernels.attention": "trnlab.nki.neuronxcc.private_kernels.refused",
    "neuronxcc.nki._private_kernels.cumsum": "trnlab.nki.neuronxcc.private_kernels.refused",
    "neuronxcc.nki._private_kernels.llama3_transformer": "trnlab.nki.neuronxcc.private_kernels.refused",
    "neuronxcc.nki.isa": "trnlab.nki.neuronxcc.isa",
    "neuronxcc.nki.isa.constants": "trnlab.nki.enums",
    "neuronxcc.nki.isa.neuron_isa": "trnlab.nki.neuronxcc.isa",
    "neuronxcc.nki.language": "trnlab.nki.neuronxcc.language",
    "neuronxcc.nki.language.constants": "trnlab.nki.neuronxcc.constants",
    "neuronxcc.nki.language.iterators": "trnlab.nki.neuronxcc.iterators",
    "neuronxcc.nki.compiler": "trnlab.nki.neuronxcc.compiler",
    "neuronxcc.nki.compiler.backends": "trnlab.nki.neuronxcc.dimensions",
    "neuronxcc.nki.compiler.backends.neuron": "trnlab.nki.neuronxcc.dimensions",
    "neuronxcc.nki.compiler.backends.neuron.dimensions": "trnlab.nki.neuronxcc.dimensions",
    "neuronxcc.nki.nccl": "trnlab.nki.neuronxcc.nccl",
    "neuronxcc.nki.nccl.collectives": "trnlab.nki.neuronxcc.nccl",
    "neuronxcc.nki.typing": "trnlab.nki.neuronxcc.typing",
}

# Packages of kernels that the vendor's compiler brings along, and the published package with the same files.
COPIES = {
    "neuronxcc.nki.kernels": "nki_samples.reference",
    "neuronxcc.nki.docs.examples": "nki_samples.tutorials",
}
_SAMPLES = "published in aws-neuron/nki-samples: put the folder src/ of a clone on PYTHONPATH"
_INTERNAL = "which nobody has published; for kernels of the same purpose see aws-neuron/nki-library"
# Modules that are not here: where what they hold is to be found.
ELSEWHERE = {
    "neuronxcc.nki.kernels": _SAMPLES,
    "neuronxcc.nki.docs": _SAMPLES,
    "neuronxcc.nki._pre_prod_kernels": f"kernels inside of the vendor's compiler, {_INTERNAL}",
    "neuronxcc.nki._pre_prod_nkl": f"kernels inside of the vendor's compiler, {_INTERNAL}",
    "neuronxcc.nki._private_kernels": f"kernels inside of the vendor's compiler, {_INTERNAL}",
    "neuronxcc.nki._private": "internal to the vendor's compiler; trnlab has _private.private_api of it",
    "neuronxcc.nki.compiler.backends": "internal to the vendor's compiler; launch grids are nl.nc(2) and spmd_dim",
    "neuronxcc.driver": "the vendor's compiler itself; trnlab compiles PyTorch with torch.compile and compile_step",
    "neuronxcc.starfish": "the vendor's compiler itself, whose internals have no counterpart here",
    "nki.compiler": "the vendor's compiler itself; here @nki.jit records a kernel, and nki.simulate runs it",
    "nki.runtime": "the vendor's runtime; here a kernel is called on arrays",
}

ROOTS = tuple(dict.fromkeys(name.split(".")[0] for name in MODULES))


def install_imports(*, override: bool = False) -> tuple[str, ...]:
    """Make kernels' imports find trnlab in this process; returns the top-level names it took.

    A vendor's package that is installed wins unless `override`. Names that MODULES does not list are refused as
    modules that are not there.
    """
    return install_modules(MODULES, ELSEWHERE, COPIES, override=override)


def install_modules(
    modules: Mapping[str, str],
    elsewhere: Mapping[str, str],
    copies: Mapping[str, str],
    *,
    override: bool = False,
    hidden: Callable[[str], bool] = lambda name: False,
    apart: bool = False,
) -> tuple[str, ...]:
    """Make the names of `modules` find the modules they stand for; returns the top-level names that were taken.

    elsewhere: what to say of modules that are not there. copies: packages whose files another one may have. hidden:
    asked in the course of each import whether whoever makes it is not to find the module, as if it was not installed.
    apart: a package is a module of its own that looks names up in the one it stands for, as `from package import
    module` needs where that is a file, or stands for several.
    """
    roots = tuple(dict.fromkeys(name.split(".")[0] for name in modules))
    sys.meta_path[:] = [f for f in sys.meta_path if not (isinstance(f, _Finder) and f.modules is modules)]
    taken = tuple(root for root in roots if override or not _elsewhere(root))
    for name in [name for name in sys.modules if override and name.split(".")[0] in roots]:
        del sys.modules[name]
    sys.meta_path.insert(0, _Finder(taken, modules, elsewhere, copies, hidden, apart))
    return taken


def _elsewhere(root: str) -> bool:
    """Whether a package of that name comes from somewhere else."""
    known = sys.modules.get(root)
    if known is not None:
        return not known.__name__.startswith("trnlab.")
    found = [f.find_spec(root, None) for f in sys.meta_path if not isinstance(f, _Finder)]
    return any(spec is not None and spec.origin is not None for spec in found)  # a mere folder is no package


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules under their vendor's names, and loads each when it is first asked for."""

    def __init__(
        self,
        roots: tuple[str, ...],
        modules: Mapping[str, str],
        elsewhere: Mapping[str, str],
        copies: Mapping[str, str],
        hidden: Callable[[str], bool],
        apart: bool,
    ) -> None:
        self.roots, self.modules, self.elsewhere, self.copies = roots, modules, elsewhere, copies
        self.hidden, self.apart = hidden, apart

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Specification of a module under one of the roots. Raises ModuleNotFoundError for one that trnlab does
        not have."""
        if name.split(".")[0] not in self.roots or self.hidden(name):
            return None
        copied = self._copied(name)
        if copied:
            return ModuleSpec(name, self, origin=copied, is_package=True)
        if name not in self.modules:
            raise ModuleNotFoundError(self._not_here(name), name=name)
        package = any(known.startswith(f"{name}.") for known in (*self.modules, *self.copies))
        return ModuleSpec(name, self, origin=self.modules[name], is_package=package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module under its own name; the import system is about to give it a second spec."""
        assert spec.origin is not None
        module = importlib.import_module(spec.origin)
        if self.apart and spec.submodule_search_locations is not None:
            module = self._package(spec.name, module)
        spec.loader_state = module.__spec__
        return module

    def _package(self, name: str, origin: ModuleType) -> ModuleType:
        """A package of its own by this name: its modules, then what the module has that it stands for."""
        package = ModuleType(name, origin.__doc__)

        def found(asked: str) -> Any:
            if f"{name}.{asked}" in self.modules:
                return importlib.import_module(f"{name}.{asked}")
            return getattr(origin, asked)

        package.__getattr__ = found  # type: ignore[method-assign]
        package.__dir__ = lambda: dir(origin)  # type: ignore[method-assign]
        package.__spec__ = ModuleSpec(name, self, origin=origin.__name__, is_package=True)
        return package

    def exec_module(self, module: ModuleType) -> None:
        """It has been executed; it keeps its own spec."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state

    def _copied(self, name: str) -> str:
        """The published module with the contents of one that comes with the vendor's compiler, or ""."""
        for theirs, published in self.copies.items():
            if name == theirs or name.startswith(f"{theirs}."):
                found = published + name.removeprefix(theirs)
                return found if _exists(found) else ""
            if theirs.startswith(f"{name}.") and name not in self.modules and _exists(published):
                return published.rpartition(".")[0]
        return ""

    def _not_here(self, name: str) -> str:
        """What to say of a module that trnlab does not have."""
        said = (text for prefix, text in self.elsewhere.items() if name == prefix or name.startswith(f"{prefix}."))
        where = next(said, "")
        if where:
            return f"No module named {name!r} in trnlab: {where}"
        known = ", ".join(known for known in self.modules if known.split(".")[0] == name.split(".")[0])
        return f"No module named {name!r}; trnlab has {known}"


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False

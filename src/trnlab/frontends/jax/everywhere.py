# SPDX-License-Identifier: Apache-2.0
"""Every `jax.jit` of a script that nobody edited, on the simulated chip (ADR 100).

What `jax.jit`, `pmap`, `shard_map`, Flax's `nnx.jit` and Equinox' `filter_jit` compile comes to one place in JAX, as
a module of StableHLO with its devices. `install` stands there: functions of the script, and of libraries, become
programs of the chip; operators of JAX outside of such functions stay with XLA on the host, as does what the chip has
no form for.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax

from trnlab.fabric.cluster import Cluster
from trnlab.frontends.common import engine
from trnlab.frontends.jax.executables import ChipExecutable
from trnlab.frontends.jax.function_metadata import FunctionMetadata, asked_of, is_the_scripts
from trnlab.frontends.unedited import UNKNOWN
from trnlab.runtime.notices import say
from trnlab.runtime.session import Session

_asked: ContextVar[FunctionMetadata | None] = ContextVar("what JAX compiles now", default=None)
_installed: list[Callable[[], None]] = []
_JAX = str(Path(jax.__file__).parent) + os.sep


def install(session: Session | None = None) -> bool:
    """Take what JAX compiles to the chip from now on, with as many devices as the target has cores; whether it could.

    Another version of JAX may have its compiler elsewhere; then a line says so (TRN292), and scripts run on the host.
    """
    if _installed:
        return True
    try:
        _check_places()
    except (ImportError, AttributeError) as error:
        say(
            f"{UNKNOWN}: functions of JAX {jax.__version__} run on the host, for this version is not known here "
            f"({error}); trnlab.frontends.jax.jit in the place of jax.jit takes them to the chip"
        )
        return False
    undo = [_replace(*place) for place in _places()]
    _installed.extend(undo)
    if session is not None and engine.follower() is None and session.communicator is None:
        _as_many_devices(Cluster(session.target, session.instances).ranks)
    return True


def uninstall() -> None:
    """Leave what is compiled from now on with XLA."""
    if _installed:
        jax.clear_caches()  # what was compiled is found there
    while _installed:
        _installed.pop()()


@contextmanager
def installed() -> Iterator[None]:
    """Within the block what JAX compiles goes to the chip."""
    jax.clear_caches()
    install()
    try:
        yield
    finally:
        uninstall()


def _as_many_devices(cores: int) -> None:
    """Unless the script or the environment says otherwise, and before the host's devices are made."""
    from jax._src import xla_bridge

    told = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "") or "JAX_NUM_CPU_DEVICES" in os.environ
    told = told or int(os.environ.get("WORLD_SIZE") or 1) > 1  # whose ranks have a core each
    if not told and not xla_bridge.backends_are_initialized():
        jax.config.update("jax_num_cpu_devices", cores)


def _places() -> list[tuple[Any, str, Callable[[Any], Any]]]:
    """Where JAX is entered: owner, attribute, and what is made of it."""
    from jax._src import compiler, pjit
    from jax._src.interpreters import pxla

    return [
        (pxla.UnloadedMeshExecutable, "from_hlo", _from_hlo),
        (compiler, "compile_or_get_cached", _compile),
        (pjit, "_get_fastpath_data", _fast_path),
        (pxla.MeshExecutable, "create_cpp_call", _fast_call),
        (pjit, "make_jit", _made),
        (pxla, "lower_sharding_computation", _lowered),
    ]


def _check_places() -> None:
    for owner, name, _ in _places():
        getattr(owner, name)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    original = vars(owner)[name]
    function = original.__func__ if isinstance(original, staticmethod) else original
    made = functools.wraps(function)(make(function))
    setattr(owner, name, staticmethod(made) if isinstance(original, staticmethod) else made)
    return lambda: setattr(owner, name, original)


def _from_hlo(original: Callable[..., Any]) -> Callable[..., Any]:
    """A module becomes an executable: note whose it is, for who compiles it."""

    def from_hlo(name: str, hlo: Any, *args: Any, **kwargs: Any) -> Any:
        inputs, outputs = kwargs.get("global_in_avals", ()), kwargs.get("global_out_avals", ())
        token = _asked.set(asked_of(name, kwargs, inputs, outputs))
        try:
            return original(name, hlo, *args, **kwargs)
        finally:
            _asked.reset(token)

    return from_hlo


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_or_get_cached(
        backend: Any, computation: Any, devices: Any, options: Any, *args: Any, **kw: Any
    ) -> Any:
        asked = _asked.get()
        if asked is None or backend.platform != "cpu" or not is_the_scripts(asked, _by_name):
            return original(backend, computation, devices, options, *args, **kw)

        def on_host(**more: Any) -> Any:
            if more:
                options.env_option_overrides = [*options.env_option_overrides, *more.items()]
            return original(backend, computation, devices, options, *args, **kw)

        made = ChipExecutable(asked, computation, devices.flatten().tolist(), on_host)
        if len(made.devices) > 1:
            made.on_host()  # who says how results are laid out over devices
        return made

    return compile_or_get_cached


def _fast_path(original: Callable[..., Any]) -> Callable[..., Any]:
    """JAX's own way around Python knows executables of XLA alone."""

    def fast_path(executable: Any, *args: Any, **kwargs: Any) -> Any:
        ours = isinstance(getattr(executable, "xla_executable", None), ChipExecutable)
        return None if ours else original(executable, *args, **kwargs)

    return fast_path


def _fast_call(original: Callable[..., Any]) -> Callable[..., Any]:
    def create_cpp_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if isinstance(self.xla_executable, ChipExecutable) else original(self, *args, **kwargs)

    return create_cpp_call


_by_name: set[str] = set()


def _made(original: Callable[..., Any]) -> Callable[..., Any]:
    """A script may compile a function of JAX's own, as jax.jit(jax.nn.relu): this one then counts as the script's."""

    def make_jit(fun: Any, *args: Any, **kwargs: Any) -> Any:
        from jax._src import api_util

        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename in _JIT_FILES:
            frame = frame.f_back
        if not frame.f_code.co_filename.startswith(_JAX):
            _by_name.add(str(api_util.fun_sourceinfo(fun)))
        return original(fun, *args, **kwargs)

    return make_jit


_JIT_FILES = (*(f"{_JAX}_src{os.sep}{name}.py" for name in ("api", "pjit", "traceback_util")), __file__)


def _lowered(original: Callable[..., Any]) -> Callable[..., Any]:
    """Kernels, and attention that was asked for, stay whole in what goes to the chip."""

    def lower_sharding_computation(jaxpr: Any, *args: Any, **kwargs: Any) -> Any:
        from trnlab.frontends.jax.compiled import _inside
        from trnlab.frontends.jax.kernels import for_chip

        with ExitStack() as stack:
            if _has_ours(jaxpr.jaxpr):
                stack.enter_context(_inside(for_chip))
            return original(jaxpr, *args, **kwargs)

    return lower_sharding_computation


def _has_ours(jaxpr: Any) -> bool:
    from jax._src import core

    return any(eqn.primitive.name.startswith("trnlab_") for eqn in jaxpr.eqns) or any(
        _has_ours(inner) for inner in core.subjaxprs(jaxpr)
    )

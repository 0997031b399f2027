# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch_xla, torch_neuronx and horovod.torch: scripts written for them run, on the device `neuron`.

`install()` makes the imports find the modules of `torch/xla`, and PyTorch is imported when they are. A rank is a
process with one NeuronCore: torchrun, `trnlab run --ranks` or `xmp.spawn` start several, whose collectives are those
of `torch.distributed`'s backend `neuron`. The profiler writes nothing: `trnlab run` keeps a timeline anyway. A name
that callers are known to use is supported, or refused by its name when it is used (`torch.xla.names`).

Libraries that look for torch_xla train in its ways once it is there, on TPUs. So an installed library does not find
it unless the script has imported it; packages with "neuron" or "xla" in their names, which cannot work without, do.
Hugging Face's (transformers, accelerate, diffusers) have a switch, too, USE_TORCH_XLA. Unless the environment says
otherwise it is 0 where the accelerate that is installed knows the device `neuron`, which it finds by torch_neuronx.
It is 1 where it does not: on the hardware such a version trains by torch_xla, and has no other way to the device.
Where the script has imported torch_xla, Lightning asks `torch_xla._internal.tpu`, `torch_xla.experimental.tpu` and
`.pjrt` whether there are TPUs.

Sources: the API guide of pytorch/xla 2.x; uses in public scripts for Trainium.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, DistributionFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trnlab.frontends import listener
from trnlab.nki.imports import install_modules

_XLA = "trnlab.frontends.torch.xla"
MODULES = {
    "torch_xla": f"{_XLA}.root",
    "torch_xla._XLAC": f"{_XLA}.binary",
    "torch_xla._internal": f"{_XLA}.stubs.internal",
    "torch_xla._internal.neuron": f"{_XLA}.stubs.internal",
    "torch_xla._internal.pjrt": f"{_XLA}.stubs.internal",
    "torch_xla._internal.tpu": f"{_XLA}.stubs.tpu",
    "torch_xla.amp": f"{_XLA}.amp",
    "torch_xla.amp.autocast_mode": f"{_XLA}.amp",
    "torch_xla.amp.grad_scaler": f"{_XLA}.amp",
    "torch_xla.amp.syncfree": f"{_XLA}.amp",
    "torch_xla.amp.syncfree.adam": f"{_XLA}.amp",
    "torch_xla.amp.syncfree.adamw": f"{_XLA}.amp",
    "torch_xla.amp.syncfree.sgd": f"{_XLA}.amp",
    "torch_xla.core": f"{_XLA}.stubs.core",
    "torch_xla.core.dynamo_bridge": f"{_XLA}.stubs.elsewhere",
    "torch_xla.core.functions": f"{_XLA}.functions",
    "torch_xla.core.xla_builder": f"{_XLA}.stubs.elsewhere",
    "torch_xla.core.xla_env_vars": f"{_XLA}.stubs.env_vars",
    "torch_xla.core.xla_model": f"{_XLA}.model",
    "torch_xla.debug": f"{_XLA}.stubs.debug",
    "torch_xla.debug.metrics": f"{_XLA}.stubs.debug",
    "torch_xla.debug.profiler": f"{_XLA}.stubs.debug",
    "torch_xla.distributed": f"{_XLA}.distributed",
    "torch_xla.distributed.fsdp": f"{_XLA}.stubs.sharded",
    "torch_xla.distributed.fsdp.wrap": f"{_XLA}.stubs.sharded",
    "torch_xla.distributed.fsdp.utils": f"{_XLA}.stubs.sharded",
    "torch_xla.distributed.parallel_loader": f"{_XLA}.loaders",
    "torch_xla.distributed.spmd": f"{_XLA}.spmd",
    "torch_xla.distributed.spmd.xla_sharding": f"{_XLA}.spmd",
    "torch_xla.distributed.xla_backend": f"{_XLA}.distributed",
    "torch_xla.distributed.xla_dist": f"{_XLA}.stubs.elsewhere",
    "torch_xla.distributed.xla_multiprocessing": f"{_XLA}.processes",
    "torch_xla.distributed.zero_redundancy_optimizer": f"{_XLA}.zero",
    "torch_xla.experimental": f"{_XLA}.stubs.experimental",
    "torch_xla.experimental.custom_kernel": f"{_XLA}.stubs.elsewhere",
    "torch_xla.experimental.pjrt": f"{_XLA}.runtime",
    "torch_xla.experimental.pjrt_backend": f"{_XLA}.distributed",
    "torch_xla.experimental.scan": f"{_XLA}.stubs.loops",
    "torch_xla.experimental.scan_layers": f"{_XLA}.stubs.loops",
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": f"{_XLA}.stubs.sharded",
    "torch_xla.experimental.tpu": f"{_XLA}.stubs.tpu",
    "torch_xla.experimental.xla_sharding": f"{_XLA}.spmd",
    "torch_xla.runtime": f"{_XLA}.runtime",
    "torch_xla.stablehlo": f"{_XLA}.stubs.elsewhere",
    "torch_xla.test": f"{_XLA}.stubs.core",
    "torch_xla.test.test_utils": f"{_XLA}.stubs.test_utils",
    "torch_xla.utils": f"{_XLA}.stubs.core",
    "torch_xla.utils.checkpoint": f"{_XLA}.stubs.checkpoint",
    "torch_xla.utils.dlpack": f"{_XLA}.stubs.elsewhere",
    "torch_xla.utils.serialization": f"{_XLA}.serialization",
    "torch_xla.utils.utils": f"{_XLA}.utils",
    "torch_neuronx": f"{_XLA}.neuronx",
    "torch_neuronx.contexts": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.distributed": f"{_XLA}.stubs.core",
    "torch_neuronx.distributed.fsdp_mics": f"{_XLA}.stubs.sharded",
    "torch_neuronx.experimental": f"{_XLA}.neuronx",
    "torch_neuronx.experimental.profiler": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.experimental.profiler.v2_x": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.experimental.profiler.v2_x.custom_op_name": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.parallel_compile": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.parallel_compile.neuron_parallel_compile": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.proto": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.proto.metaneff_pb2": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.pyhlo": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.pyhlo.hlo_pb2": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.pyhlo.xla_data_pb2": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.testing": f"{_XLA}.neuronx",
    "torch_neuronx.testing.validation": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.utils": f"{_XLA}.neuronx",
    "torch_neuronx.utils.utils": f"{_XLA}.neuronx",
    "torch_neuronx.xla_impl": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.base": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.bucket_trace": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.custom_call_targets": f"{_XLA}.stubs.markers",
    "torch_neuronx.xla_impl.custom_op": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.ops": f"{_XLA}.stubs.operators",
    "torch_neuronx.xla_impl.structure": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.torchscript": f"{_XLA}.stubs.elsewhere",
    "torch_neuronx.xla_impl.trace": f"{_XLA}.stubs.elsewhere",
    "libneuronxla": f"{_XLA}.stubs.elsewhere",
    "libneuronxla.neuron_cc_cache": f"{_XLA}.stubs.compile_cache",
    "libneuronxla.neuron_cc_wrapper": f"{_XLA}.stubs.elsewhere",
    "horovod": "trnlab.frontends.torch.horovod.root",
    "horovod.torch": "trnlab.frontends.torch.horovod",
    "horovod.torch.compression": "trnlab.frontends.torch.horovod.compression",
    "horovod.torch.elastic": "trnlab.frontends.torch.horovod.elastic",
}
ELSEWHERE = {
    "torch_xla": "TRN296: of torch_xla there are the device, steps, ranks and what docs/scripts.md lists",
    "horovod": "of Horovod there is horovod.torch",
    "torch_neuronx": "TRN296: models are compiled here by torch.compile(backend='neuron'), compile_step and trace",
    "libneuronxla": "TRN296: trnlab compiles by itself, and keeps its programs in a cache of its own",
}
VERSION = "2.9.0+trnlab"  # of torch_xla and torch_neuronx: the release whose names these are
_HAVE_A_SWITCH = ("accelerate", "diffusers", "transformers")


def install(*, override: bool = False) -> tuple[str, ...]:
    """Make `import torch_xla` and `import torch_neuronx` find these; an installed package wins unless `override`."""
    listener.leave()
    if "USE_TORCH_XLA" not in os.environ:  # to which processes that this one starts look
        os.environ["USE_TORCH_XLA"] = "1" if _needs_torch_xla() else "0"
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _Versions)]
    if _switched_on():
        sys.meta_path.append(_Versions())
    return install_modules(MODULES, ELSEWHERE, {}, override=override, hidden=_only_looks, apart=True)


def _needs_torch_xla() -> bool:
    """Whether there is an accelerate, and of a version without the device `neuron`."""
    found = find_spec("accelerate")
    file = Path(found.origin).parent / "utils" / "imports.py" if found is not None and found.origin else None
    return file is not None and file.is_file() and "torch_neuronx" not in file.read_text(errors="replace")


def _switched_on() -> bool:
    return os.environ["USE_TORCH_XLA"].upper() in ("1", "ON", "YES", "TRUE")


class _Versions(DistributionFinder):
    """The versions of packages of which there is no file: those who have the switch believe in no module without."""

    def find_spec(self, *_: Any) -> None:
        """No module."""

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        """That of one of them, where it is asked for by its name."""
        name = (context.name or "").lower().replace("-", "_") if context is not None else ""
        if name in ("torch_neuronx", "torch_xla"):
            yield _Stated(name)


class _Stated(Distribution):
    """What is asked of a distribution: its version."""

    def __init__(self, name: str) -> None:
        self._called = name

    def read_text(self, filename: str) -> str | None:
        """Its metadata."""
        said = f"Metadata-Version: 2.1\nName: {self._called}\nVersion: {VERSION}\n"
        return said if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        """Nowhere."""
        return Path(path)


def _only_looks(name: str) -> bool:
    """Whether torch_xla is asked for by an installed library that would take another way if it was there."""
    if name.split(".")[0] != "torch_xla" or "torch_xla" in sys.modules:
        return False
    frame = sys._getframe(1)
    while frame.f_back is not None and _imports(frame.f_code.co_filename):
        frame = frame.f_back
    package = str(frame.f_globals.get("__name__") or "").split(".")[0]
    if package in ("__main__", "trnlab") or "neuron" in package or "xla" in package:
        return False
    if package in _HAVE_A_SWITCH and _switched_on():
        return False
    return _installed(package, frame.f_code.co_filename)


def _imports(file: str) -> bool:
    """Whether a file is of the import system, or has a part in it here."""
    return file.startswith("<frozen importlib") or file in _OURS or Path(file).parent.name == "importlib"


@cache
def _installed(package: str, file: str) -> bool:
    """Whether a module is of a distribution that was installed, wherever that may be."""
    folders = [folder for folder in Path(file).parents if folder.name in (package, "site-packages", "dist-packages")]
    return any(folder.name != package or any(folder.parent.glob(f"{package}-*.dist-info")) for folder in folders)


_OURS = (__file__, listener.__file__, str(Path(sys.modules[install_modules.__module__].__file__ or "")))

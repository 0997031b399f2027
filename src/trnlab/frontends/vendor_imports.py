# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch_xla, torch_neuronx and horovod.torch: scripts written for them run, on the device `neuron`.

`install()` makes the imports find the modules of `torch/xla`, and PyTorch is imported when they are. Nothing is lazy
here, so that marking a step or waiting does nothing; there is one process, so that reductions over processes return
what they were given. The profiler writes nothing: `trnlab run` keeps a timeline anyway. Models compiled ahead of time
(torch_neuronx.trace) are refused.

Libraries that look for torch_xla train in its ways once it is there, on TPUs. So an installed library does not find
it unless the script has imported it; packages with "neuron" or "xla" in their names, which cannot work without, do.
Hugging Face's (transformers, accelerate, diffusers) have a switch, too, USE_TORCH_XLA, which is set to 0 unless the
environment says otherwise: they find torch_neuronx then, and the device `neuron`. Where the script has imported
torch_xla, Lightning asks `torch_xla._internal.tpu`, `torch_xla.experimental.tpu` and `.pjrt` whether there are TPUs.

What the newest versions of these libraries import of it, beside the modules below, in code for TPUs alone:
`torch_xla.amp`, `.core.functions`, `.core.xla_env_vars`, `.distributed.fsdp`, `.distributed.spmd`,
`.experimental.custom_kernel`, `.experimental.spmd_fully_sharded_data_parallel` and `.utils.utils`.

Sources: the API guide of pytorch/xla 2.x; uses in public scripts for Trainium.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

from trnlab.nki.imports import install_modules

MODULES = {
    "torch_xla": "trnlab.frontends.torch.xla.root",
    "torch_xla.core": "trnlab.frontends.torch.xla.core",
    "torch_xla.core.xla_model": "trnlab.frontends.torch.xla.model",
    "torch_xla.runtime": "trnlab.frontends.torch.xla.runtime",
    "torch_xla.debug": "trnlab.frontends.torch.xla.debug",
    "torch_xla.debug.metrics": "trnlab.frontends.torch.xla.debug",
    "torch_xla.debug.profiler": "trnlab.frontends.torch.xla.debug",
    "torch_xla.distributed": "trnlab.frontends.torch.xla.processes",
    "torch_xla.distributed.parallel_loader": "trnlab.frontends.torch.xla.processes",
    "torch_xla.distributed.xla_backend": "trnlab.frontends.torch.xla.processes",
    "torch_xla.distributed.xla_multiprocessing": "trnlab.frontends.torch.xla.processes",
    "torch_xla._internal": "trnlab.frontends.torch.xla.experimental",
    "torch_xla._internal.tpu": "trnlab.frontends.torch.xla.tpu",
    "torch_xla.experimental": "trnlab.frontends.torch.xla.experimental",
    "torch_xla.experimental.pjrt": "trnlab.frontends.torch.xla.runtime",
    "torch_xla.experimental.tpu": "trnlab.frontends.torch.xla.tpu",
    "torch_neuronx": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.testing": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.utils": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.xla_impl": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.xla_impl.ops": "trnlab.frontends.torch.xla.neuronx",
    "horovod": "trnlab.frontends.torch.horovod.root",
    "horovod.torch": "trnlab.frontends.torch.horovod",
    "horovod.torch.compression": "trnlab.frontends.torch.horovod.compression",
    "horovod.torch.elastic": "trnlab.frontends.torch.horovod.elastic",
}
ELSEWHERE = {
    "torch_xla": "of torch_xla there are the device, steps, one process and a profiler that writes nothing",
    "horovod": "of Horovod there is horovod.torch",
    "torch_neuronx": "models are compiled here by torch.compile(backend='neuron') and compile_step",
}


def install(*, override: bool = False) -> tuple[str, ...]:
    """Make `import torch_xla` and `import torch_neuronx` find these; an installed package wins unless `override`."""
    os.environ.setdefault("USE_TORCH_XLA", "0")
    return install_modules(MODULES, ELSEWHERE, {}, override=override, hidden=_only_looks)


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
    return _installed(package, frame.f_code.co_filename)


def _imports(file: str) -> bool:
    """Whether a file is of the import system, or has a part in it here."""
    return file.startswith("<frozen importlib") or file in _OURS or Path(file).parent.name == "importlib"


@cache
def _installed(package: str, file: str) -> bool:
    """Whether a module is of a distribution that was installed, wherever that may be."""
    folders = [folder for folder in Path(file).parents if folder.name in (package, "site-packages", "dist-packages")]
    return any(
        folder.name != package or any(folder.parent.glob(f"{package}-*.dist-info")) for folder in folders
    )  # fmt: skip


_OURS = (__file__, str(Path(sys.modules[install_modules.__module__].__file__ or "")))

# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for torch_xla, torch_neuronx and horovod.torch: scripts written for them run, on the device `neuron`.

`install()` makes the imports find the modules of `torch/xla`, and PyTorch is imported when they are. Nothing is lazy
here, so that marking a step or waiting does nothing; there is one process, so that reductions over processes return
what they were given. The profiler writes nothing: `trnlab run` keeps a timeline anyway. Models compiled ahead of time
(torch_neuronx.trace) are refused.

Libraries that look for torch_xla train in its ways once it is there. Hugging Face's (transformers, accelerate,
diffusers) have a switch for that, USE_TORCH_XLA, which is set to 0 unless the environment says otherwise: they find
torch_neuronx then, and the device `neuron`.

Sources: the API guide of pytorch/xla 2.x; uses in public scripts for Trainium.
"""

from __future__ import annotations

import os

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
    "torch_neuronx": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.testing": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.utils": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.xla_impl": "trnlab.frontends.torch.xla.neuronx",
    "torch_neuronx.xla_impl.ops": "trnlab.frontends.torch.xla.neuronx",
    "horovod": "trnlab.frontends.torch.horovod",
    "horovod.torch": "trnlab.frontends.torch.horovod",
}
ELSEWHERE = {
    "torch_xla": "of torch_xla there are the device, steps, one process and a profiler that writes nothing",
    "horovod": "of Horovod there is horovod.torch",
    "torch_neuronx": "models are compiled here by torch.compile(backend='neuron') and compile_step",
}


def install(*, override: bool = False) -> tuple[str, ...]:
    """Make `import torch_xla` and `import torch_neuronx` find these; an installed package wins unless `override`."""
    os.environ.setdefault("USE_TORCH_XLA", "0")
    return install_modules(MODULES, ELSEWHERE, {}, override=override)

# SPDX-License-Identifier: Apache-2.0
"""Forward passes on one core of Inferentia2 in bf16, and tokens of Llama-2-70B on the 32 ranks of a Trn1.

Encoders are those of `validation.inference`, decoders those that serving is planned with; convolutional networks are
captured from PyTorch in their evaluation mode. Nothing has values.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from benchmarks import lines
from trnlab import chips
from trnlab.errors import TrnlabError
from trnlab.fleet.costs.timed import TimedPrograms
from trnlab.fleet.models.configurations import model
from trnlab.fleet.serving.costs import ServingCosts
from trnlab.fleet.serving.layers import ServingProgram
from trnlab.frontends.torch import import_fx
from trnlab.frontends.torch.capture.tracing import trace
from trnlab.graph.ir import Graph
from trnlab.runtime.session import Session
from trnlab.units import PS_PER_S
from trnlab.validation.inference import forward, weights_of

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "fleet"))
from resnet_in_pytorch import ResNet
from unet_in_pytorch import UNet

FORM = "bfloat16"
# Of one core: what, samples, tokens of each, and the milliseconds that are asked for.
ENCODERS = (("bert-base", 1, 128, 0.9), ("bert-base", 8, 128, 5.0), ("vit-base", 1, 197, 1.2))
CONVOLUTIONS = (
    ("ResNet-50", 1, 0.75),
    ("ResNet-50", 8, 3.3),
    ("VGG-16", 1, 1.9),
    ("Stable Diffusion's U-Net", 1, 38.0),
)
DECODER, RANKS, PLACES = "llama2-70b", 32, 2048
TOKENS = {1: 25.0, 4: 27.0}  # milliseconds of a token of each sequence, by sequences
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # of VGG-16: channels, and convolutions that have them


class VGG16(nn.Module):
    """Configuration D of arXiv:1409.1556: [N, 3, 224, 224] images to [N, 1000] logits."""

    def __init__(self) -> None:
        super().__init__()
        found: list[nn.Module] = []
        inputs = 3
        for channels, count in STAGES:
            for _ in range(count):
                found += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
                inputs = channels
            found.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*found)
        widths = (512 * 7 * 7, 4096, 4096, 1000)
        self.head = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        x = self.features(x).flatten(1)
        for i, layer in enumerate(self.head):
            x = layer(functional.relu(x) if i else x)
        return x


def network(what: str, images: int) -> tuple[nn.Module, list[torch.Tensor]]:
    """A network in bf16, and what it is given."""
    if what.endswith("U-Net"):
        shapes = ((images, 4, 64, 64), (images, 1), (images, 77, 768))
        return UNet(), [torch.zeros(shape) for shape in shapes]
    made = ResNet() if what == "ResNet-50" else VGG16()
    return made, [torch.zeros(images, 3, 224, 224)]


def captured(what: str, images: int) -> Graph:
    """The graph of a network's forward pass; parameters are its inputs."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    torch.set_default_dtype(torch.bfloat16)
    with mode, torch.device("neuron"):
        made, given = network(what, images)
    torch.set_default_dtype(torch.float32)
    made.eval()
    own = dict(made.named_parameters()) | dict(made.named_buffers())

    def traced(lines: Any, *tensors: torch.Tensor) -> list[torch.Tensor]:
        weights = dict(zip(own, tensors[len(given) :]))
        return [torch.func.functional_call(made, weights, tensors[: len(given)])]

    with torch.no_grad():
        return import_fx(trace(traced, [*given, *(x.detach() for x in own.values())], mode), what).graph


def core_ms(graph: Graph, frozen: Sequence[int]) -> float:
    """Milliseconds of a graph on a core of Inferentia2. frozen: inputs that are weights."""
    made = TimedPrograms(Session(chips.target("inf2.xlarge"))).executable(graph, "forward", frozen=frozen)
    return float(made.total_ps / PS_PER_S * 1e3)


def encoder_ms(name: str, samples: int, places: int) -> float:
    """Milliseconds of an encoder's forward pass."""
    graph = forward(model(name), samples, places, FORM)
    return core_ms(graph, weights_of(graph))


def network_ms(what: str, images: int) -> float:
    """Milliseconds of a convolutional network's forward pass, whose inputs but the first are weights."""
    graph = captured(what, images)
    return core_ms(graph, range(3 if what.endswith("U-Net") else 1, len(graph.inputs)))


def token_ms(sequences: int) -> float:
    """Milliseconds of a token of each of so many sequences."""
    costs = ServingCosts(Session(chips.target("trn1.32xlarge")))
    return 1e3 * costs.of("decode", model(DECODER), ServingProgram(sequences, PLACES, RANKS)).seconds


def line(what: str, limit: float, measure: Callable[[], float]) -> lines.Line:
    """A line of milliseconds; one without a figure where there is no program."""
    try:
        return lines.at_most(what, measure(), limit, "ms")
    except TrnlabError as error:  # what cannot be compiled is a line, too
        return lines.Line(what, None, "ms", f"<= {limit:g} ms", False, str(error))


def main() -> None:
    """Measure and report."""
    found = [
        line(f"{name}, {n} x {places}, one core of inf2", ms, lambda: encoder_ms(name, n, places))  # noqa: B023
        for name, n, places, ms in ENCODERS
    ]
    found += [
        line(f"{what}, batch {n}, one core of inf2", ms, lambda: network_ms(what, n))  # noqa: B023
        for what, n, ms in CONVOLUTIONS
    ]
    found += [
        line(f"a token of {DECODER}, batch {n}, {RANKS} ranks of trn1", ms, lambda: token_ms(n))  # noqa: B023
        for n, ms in TOKENS.items()
    ]
    lines.report(found)


if __name__ == "__main__":
    main()

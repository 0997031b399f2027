# SPDX-License-Identifier: Apache-2.0
"""What a model of the zoo is: itself, a batch from a seed, and a loss function (model, *batch) -> scalar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Subject:
    """A model with what it is trained on.

    draws: it draws random numbers as it trains, of which the host's generator has others than the chip.
    """

    model: nn.Module
    batch: Callable[[int], tuple[Tensor, ...]]
    loss: Loss
    draws: bool = False


MODELS: dict[str, Callable[[], Subject]] = {}


def zoo(function: Callable[[], Subject]) -> Callable[[], Subject]:
    """Register a model by the name of the function that makes it."""
    MODELS[function.__name__] = function
    return function


def tokens(vocabulary: int, *shape: int) -> Callable[[int], tuple[Tensor, ...]]:
    return lambda seed: (torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(seed)),)


def floats(*shapes: tuple[int, ...]) -> Callable[[int], tuple[Tensor, ...]]:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator) for shape in shapes)

    return batch


def images(size: int, classes: int = 10, count: int = 4) -> Callable[[int], tuple[Tensor, ...]]:
    def batch(seed: int) -> tuple[Tensor, ...]:
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(count, 3, size, size, generator=generator)
        return images, torch.randint(0, classes, (count,), generator=generator)

    return batch


def padded_tokens(vocabulary: int, batch: int, length: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Tokens, and a mask that hides the ends of all rows but the first."""

    def make(seed: int) -> tuple[Tensor, ...]:
        ids = torch.randint(1, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))
        lengths = torch.tensor([length - 3 * i for i in range(batch)])
        return ids, (torch.arange(length) < lengths[:, None]).long()

    return make


def classified(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    out = model(images)
    return F.cross_entropy(getattr(out, "logits", out), labels)


def language(model: nn.Module, ids: Tensor) -> Tensor:
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def masked_language(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask, labels=ids).loss


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}

# SPDX-License-Identifier: Apache-2.0
"""Vision transformers (arXiv:2010.11929)."""

from __future__ import annotations

from trnlab.fleet.models.architectures import architecture
from trnlab.fleet.models.architectures.bert import encoder_block
from trnlab.fleet.models.fields import ConfigurationFields
from trnlab.fleet.models.transformer import Model


@architecture("vit")
def vit(f: ConfigurationFields) -> Model:
    """Patches of an image and a class token, which a head of classes reads."""
    stack = encoder_block(f)
    side, patch = f.count("image_size", 224), f.count("patch_size", 16)
    tokens = (side // patch) ** 2 + 1
    return Model(
        f.name,
        stack[1].hidden,
        (stack,),
        tokens,
        positions=tokens,
        patch=patch * patch * f.count("num_channels", 3),
        classes=f.count("num_labels", len(f.config.get("id2label") or ()) or 1000),
        source=f.source,
    )

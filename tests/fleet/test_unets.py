# SPDX-License-Identifier: Apache-2.0
"""U-Nets of latent diffusion models: counted as published, made of layers, divided by data."""

from __future__ import annotations

import pytest

from trnlab import documents
from trnlab.errors import UsageError
from trnlab.fleet import Question, plan
from trnlab.fleet.comparison.contenders import gpu_contender, work_of
from trnlab.fleet.costs.networks import step
from trnlab.fleet.gpus.utilisation import class_of
from trnlab.fleet.models.configurations import catalogue, from_config, model
from trnlab.fleet.models.diffusion import UNet
from trnlab.fleet.report.document import document
from trnlab.fleet.report.table import to_json
from trnlab.fleet.search.layout import pinned

SMALL = {
    "_class_name": "UNet2DConditionModel",
    "block_out_channels": [16, 32],
    "sample_size": 8,
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "cross_attention_dim": 16,
    "attention_head_dim": 2,
    "norm_num_groups": 4,
}
XL = {"addition_embed_type": "text_time", "projection_class_embeddings_input_dim": 24}
SINGLE = {
    "block_out_channels": [16],
    "down_block_types": ["DownBlock2D"],
    "up_block_types": ["UpBlock2D"],
    "sample_size": 4,
}
TARGET = "trn1.2xlarge"


def text(plan):
    return documents.text(document(plan))


@pytest.mark.parametrize(("name", "count"), [("sd15-unet", 859_520_964), ("sdxl-unet", 2_567_463_684)])
def test_parameters_are_those_that_are_published(name, count):
    """Of diffusers' UNet2DConditionModel with the published configurations (859.5 and 2,567 million)."""
    assert model(name).parameters == count


def test_a_u_net_is_counted_in_images():
    found = model("unet")
    assert (found.name, found.unit, found.counted, class_of(found)) == ("sd15-unet", "images", "images", "diffusion")
    assert found.brought == 2 * (2 * 4 * 64**2 + 77 * 768) + 4


@pytest.mark.torch
def test_what_is_counted_is_what_pytorch_counts():
    """With two layers in a transformer, and what describes an image beside its text; by PyTorch's own counter."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode
    from unet_in_pytorch import UNet as Reference

    counted = from_config(SMALL | XL | {"transformer_layers_per_block": [1, 2]}, "small")
    with torch.device("meta"):
        network = Reference((16, 32), (0, 2), 2, (1, 2), 1, 16, 24, 4, 4)
        given = (torch.randn(2, 4, 8, 8), torch.ones(2, 1), torch.randn(2, 77, 16), torch.randn(2, 24))
        with FlopCounterMode(display=False) as forward:
            made = network(*given)
        with FlopCounterMode(display=False) as back:
            made.sum().backward()
    assert sum(p.numel() for p in network.parameters()) == counted.parameters
    assert (forward.get_total_flops() + back.get_total_flops()) / 2 == pytest.approx(counted.flops_per_token(1))


REFUSED = [
    ({"attention_head_dim": [2, 2, 2]}, "TRN172", "not 2 whole numbers"),
    ({"sample_size": 9}, "TRN172", "9 pixels"),
    ({"up_block_types": ["UpBlock2D", "UpBlock2D"]}, "TRN172", "not the same 2 levels"),
    ({"down_block_types": "DownBlock2D"}, "TRN172", "not a list"),
    ({"down_block_types": ["AttnDownBlock2D", "DownBlock2D"]}, "TRN586", "'AttnDownBlock2D'"),
    ({"addition_embed_type": "image"}, "TRN586", "'image'"),
    ({"class_embed_type": "timestep"}, "TRN586", "timestep"),
]


@pytest.mark.parametrize(("changed", "code", "said"), REFUSED)
def test_forms_that_are_not_known(changed, code, said):
    with pytest.raises(UsageError, match=code) as caught:
        from_config(SMALL | changed, "small")
    assert said in str(caught.value)


def test_no_form_of_the_catalogue_is_another():
    found = [from_config(catalogue()[name], name) for name in ("sd15-unet", "sdxl-unet")]
    assert all(isinstance(each.network, UNet) for each in found)


def test_nothing_is_published_of_them_on_gpus():
    side = gpu_contender(work_of(model("sd15-unet"), 256), "p5.48xlarge", 1)
    assert not side.known
    assert "nothing is published for a U-Net" in side.basis[0]


@pytest.fixture(scope="module")
def planned():
    """Of the smallest network that has every kind of layer, in the middle."""
    small = from_config(SMALL | SINGLE, "small")
    fixed = pinned("mb=2,zero=0,overlap=1")
    return small, plan(Question(small, 3e6, (TARGET,), (1, 1), batch=4, fixed=fixed, epoch=1e6))


def test_what_is_counted_is_what_is_planned(planned):
    counted = planned[0]
    made = step(counted, 2, False, "bfloat16")
    assert made.count == counted.parameters
    assert made.flops / 2 == pytest.approx(counted.flops_per_token(1))
    assert made.batch_bytes / 2 == counted.brought


def test_plans_are_told_in_images(planned):
    told = text(planned[1])
    for words in ("3 M images in steps of 4 images", "images/s", "$/Mimages", "$/epoch"):
        assert words in told
    found = to_json(planned[1])
    assert (found["question"]["tokens"], found["question"]["counted"]) == (3e6, "images")
    assert found["chosen"]["seconds"]["gradients"] > 0

# SPDX-License-Identifier: Apache-2.0
"""`trnlab isa`: a page for everything in nki.isa, and a list of it all."""

from __future__ import annotations

import pytest

from trnlab.cli.main import main
from trnlab.isa import REGISTRY
from trnlab.nki import examples, isa

# Names in nki/api/nki/isa/__init__.py of aws-neuron/aws-neuron-sdk, NKI 0.6.0.
NAMES = """
    activate2 activation activation_reduce affine_select bn_aggr bn_stats core_barrier dma_compute dma_copy
    dma_transpose dropout exponential get_nc_sub_version get_nc_version iota local_gather max8 memset
    nc_find_index8 nc_match_replace8 nc_matmul nc_matmul_mx nc_n_gather nc_stream_shuffle nc_transpose
    nonzero_with_count quantize_mx rand2 rand_get_state rand_set_state range_select reciprocal register_alloc
    register_load register_move register_store rng scalar_tensor_tensor select_reduce sendrecv sequence_bounds
    set_rng_seed tensor_copy tensor_copy_predicated tensor_partition_reduce tensor_reduce tensor_scalar
    tensor_scalar_cumulative tensor_scalar_reduce tensor_tensor tensor_tensor_scan topk
"""
FUNCTIONS = NAMES.split()


def test_the_list_has_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["isa"]) == 0
    listed = capsys.readouterr().out
    assert len(FUNCTIONS) == 52
    assert all(callable(getattr(isa, name)) for name in FUNCTIONS)
    for name in {*FUNCTIONS, *REGISTRY, *examples.QUERIES}:
        assert f" {name}(" in listed


@pytest.mark.parametrize("name", ["activation", "nc_matmul_mx", "sendrecv", "register_move", "all_reduce"])
def test_a_page_has_the_call_the_example_and_its_time(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["isa", name]) == 0
    page = capsys.readouterr().out
    assert page.startswith(f"# {name}\n")
    assert f"    nki.{'isa' if name in FUNCTIONS else 'collectives'}.{name}(" in page
    for section in ("Operands", "Engines and cost", "Generations", "Example", "Time of the example, predicted"):
        assert f"## {section}" in page
    assert page.count("trn3: ") == 2
    assert "Source: " in page


def test_a_question_has_a_page_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["isa", "get_nc_version"]) == 0
    assert "nki.isa.get_nc_version()" in capsys.readouterr().out

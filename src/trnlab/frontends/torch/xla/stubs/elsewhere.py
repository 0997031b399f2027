# SPDX-License-Identifier: Apache-2.0
"""Modules of the vendor's packages of which next to nothing is here: each of their known names is refused when it is
used."""

from __future__ import annotations

from trnlab.frontends.torch.xla.names import refusing
from trnlab.frontends.torch.xla.steps import register_hlo_snapshot_callback

__all__ = ["register_hlo_snapshot_callback"]
_COMPILER = "models are compiled by torch.compile(backend='neuron'), compile_step or torch_neuronx.trace"
_NAMES = {
    **dict.fromkeys(
        (
            "computation_from_module_proto",
            "get_computation_hlo",
            "xla_call",
            "xla_hlo_call",
            "create_bucket_model",
            "HloArtifacts",
            "NeffArtifacts",
            "XLA_DTYPE_TO_METANEFF_DTYPE",
            "_trace",
            "create_neuron_model",
            "generate_hlo",
            "generate_neff",
            "get_compile_command",
            "get_hlo_computation_by_id",
            "get_hlo_root_instruction",
            "hlo_entry_computation",
            "save_compile_command",
            "setup_compiler_dirs",
            "replace_weights",
            "MetaNeff",
            "MetaTensor",
            "HloComputationProto",
            "HloInputOutputAliasProto",
            "HloInstructionProto",
            "HloModuleProto",
            "Kind",
            "PrimitiveType",
            "hlo_debug",
            "hlo_pb2",
            "xla_data_pb2",
            "metaneff_pb2",
            "neuron_xla_compile",
            "neuron_xla_wlo_compile",
            "main",
            "LOGGER",
            "get_hlos_from_run_log",
            "neuron_parallel_compile",
            "disable_nrt_load",
            "extract_compiled_graph",
            "save_torch_model_as_stablehlo",
            "Flattener",
            "Packer",
            "get_torch_dtype",
        ),
        _COMPILER,
    ),
    **dict.fromkeys(("load", "load_library", "utils"), "kernels are written in NKI: nki.jit"),
    **dict.fromkeys(("resolve_and_execute", "get_args_parser"), "start ranks with torchrun or trnlab run --ranks"),
    "flash_attention": "torch.nn.functional.scaled_dot_product_attention",
    "paged_attention": "torch.nn.functional.scaled_dot_product_attention",
    "logit_validation": "trnlab verify",
    "to_dlpack": "torch.utils.dlpack of a copy on the host",
    "from_dlpack": "torch.utils.dlpack of a copy on the host",
}
__getattr__ = refusing("torch_neuronx", _COMPILER, _NAMES)

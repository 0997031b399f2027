# SPDX-License-Identifier: Apache-2.0
"""torch_neuronx.xla_impl.custom_call_targets: names of marks between layers."""

from trnlab.frontends.torch.xla.names import refusing

AwsNeuronModuleMarkerStartForward = "AwsNeuronModuleMarkerStart-Forward"
AwsNeuronModuleMarkerEndForward = "AwsNeuronModuleMarkerEnd-Forward"
AwsNeuronModuleMarkerStartBackward = "AwsNeuronModuleMarkerStart-Backward"
AwsNeuronModuleMarkerEndBackward = "AwsNeuronModuleMarkerEnd-Backward"
__getattr__ = refusing("torch_neuronx.xla_impl.custom_call_targets", "there are the marks of modules")

# SPDX-License-Identifier: Apache-2.0
"""Names of PyTorch's modules that are waited for or looked for, and not loaded: each takes long to import."""

RINGS = "torch.distributed.tensor.experimental._context_parallel._attention"
RANDOM_SHARDS = "torch.distributed.tensor._random"
LOGGER_OF_FRAMES = "torch._dynamo.convert_frame"
DECORATORS = "torch._dynamo.decorators"  # how Dynamo is told to go round a function

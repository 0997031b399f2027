# SPDX-License-Identifier: Apache-2.0
"""What `import torch_xla` and `import torch_neuronx` find, see `frontends.vendor_imports`."""

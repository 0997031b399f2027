# SPDX-License-Identifier: Apache-2.0
"""What trnlab needs of PyTorch that PyTorch does not promise to keep, by what it does, with a form for each release.

Private names of PyTorch's modules, and what it calls experimental, are imported here and nowhere else. Whoever
imports anything from here is asked first whether the release is one that was tried (`releases`): nobody sees an
ImportError where a name is missing, but what was found, what is supported, and the way out (TRN199). Modules here
load no more of PyTorch than their names need: `import torch` alone loads some of them.

Private members of PyTorch's objects stand where they are used; `tools/versions/members.toml` lists them. Both are
looked up in every supported release by `make versions`, and in the one that is installed by
`tests/frontends/test_pytorch_names.py`.
"""

from trnlab.frontends.torch.pytorch.releases import require

require()

from torch.utils import _pytree as pytree  # noqa: E402  (whether it is there, is known from here on)

__all__ = ["pytree", "require"]

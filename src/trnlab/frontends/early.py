# SPDX-License-Identifier: Apache-2.0
"""A script of a process with TRNLAB_TARGET may import the vendors' packages before PyTorch.

PyTorch's entry point would come too late then, and nobody calls `trnlab run` in a process that torchrun starts.
`trnlab.pth`, which is installed beside the package, calls `listen` in each interpreter that starts with
TRNLAB_TARGET; one without imports nothing. This module and the listener's are all that such a start costs: what is
put in place comes with the first name that asks for it.
"""

from __future__ import annotations

import sys

from trnlab.frontends.listener import VendorImportListener


def listen() -> None:
    """Wait for the first import."""
    sys.meta_path.insert(0, VendorImportListener(_arrive))


def _arrive() -> None:
    from trnlab.frontends import vendor_imports
    from trnlab.nki.imports import install_imports

    install_imports()
    vendor_imports.install()

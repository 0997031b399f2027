# SPDX-License-Identifier: Apache-2.0
"""`make versions`: each release of PyTorch and Python that trnlab supports, tried in an environment of its own."""

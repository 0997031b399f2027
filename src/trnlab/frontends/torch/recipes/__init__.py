# SPDX-License-Identifier: Apache-2.0
"""Training steps of the models of `trnlab plan` that are no stacks of transformer blocks. Each module is a script."""

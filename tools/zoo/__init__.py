# SPDX-License-Identifier: Apache-2.0
"""Models that nobody here wrote, unmodified, trained on the simulated chip beside PyTorch on the host."""

# SPDX-License-Identifier: Apache-2.0
"""trnlab: a whole AWS Trainium in software, with its numbers and its time."""

__version__ = "0.1.0"

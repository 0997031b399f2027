# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: the pages of the repository, and the Python API from its docstrings (ADR 140)."""

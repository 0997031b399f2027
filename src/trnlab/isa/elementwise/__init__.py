# SPDX-License-Identifier: Apache-2.0
"""Instructions that compute each element by itself."""

# SPDX-License-Identifier: Apache-2.0
"""Elements that are picked or moved by indices within SBUF."""

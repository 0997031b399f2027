# SPDX-License-Identifier: Apache-2.0
"""One module per benchmark; each prints its lines of the table as JSON when it is run."""

# SPDX-License-Identifier: Apache-2.0
"""What a run costs beside time: dollars, energy, site, compilation, and the vendor's claims."""

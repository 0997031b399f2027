# SPDX-License-Identifier: Apache-2.0
"""The network between chips: links and routes, and collectives as schedules of transfers with two readings.

`cluster` says how many of which instance and where ranks are, `network` which links there are and how data takes
them, `algorithms` and `collectives` what a collective does in which steps, `choice` which algorithm serves which
size. `values` moves and adds arrays in the schedule's order; `timing` runs the same transfers as flows that share
links.
"""

from trnlab.fabric.cluster import Cluster, parse
from trnlab.fabric.network import Network, build
from trnlab.fabric.schedule import Schedule

__all__ = ["Cluster", "Network", "Schedule", "build", "parse"]

# SPDX-License-Identifier: Apache-2.0
"""Changes to a recorded kernel that keep its numbers, each made, checked and timed: what to do, why, what it gains.

    found = proposals.proposed(trial)       # the changes by gain, each with the program that it makes
    steps = ladder.climbed(trial)           # the best, then the best after it, until none gains

A change is made in one of two ways: by recording the kernel as another compiler would (`recordings`), or by changing
the list of instructions itself (`fusing`, `rows`, `engines`). Either way what comes out is verified as a program that
nobody of us recorded, executed beside the original on inputs that kernels seldom meet (`bits`), and timed.
"""

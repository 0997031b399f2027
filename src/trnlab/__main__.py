# SPDX-License-Identifier: Apache-2.0
"""`python -m trnlab`: the command line, of the interpreter that is named."""

import sys

from trnlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""`python -m trnlab`, and what the command `trnlab` calls."""

import sys

from trnlab.interrupts import end_at_once

end_at_once()

from trnlab.cli.main import main as _main  # noqa: E402


def main() -> int:
    """The command line, then nothing that Ctrl-C would have to interrupt."""
    status = _main()
    end_at_once()
    return status


if __name__ == "__main__":
    sys.exit(main())

"""``python -m ppharness``: a rank under torchrun, else the command line."""

import os
import sys

if __name__ == "__main__":
    if "RANK" in os.environ:
        from .world.processes import die_with_parent

        die_with_parent()  # at once: torchrun may end while the rest is imported

    from .cli import main

    sys.exit(main())

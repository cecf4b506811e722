"""``python -m ppharness``: a rank under torchrun, else the command line."""

import sys

from .arguments import is_rank

if __name__ == "__main__":
    if is_rank(sys.argv[1:]):
        from .world.processes import die_with_parent

        die_with_parent()  # at once: torchrun may end while the rest is imported

    from .cli import main

    sys.exit(main())

"""`python -m lowtide`: the command line; without arguments, `lowtide info`."""

import sys

from lowtide.cli.main import main

main(sys.argv[1:] or ["info"])

"""`python -m lowtide`: the command line."""

from lowtide.cli import main

main()

"""`python -m lowtide`: the command line."""

from lowtide.cli.main import program

program()

"""`python -m lowtide`: the command line."""

from lowtide.cli.main import program

if __name__ == "__main__":  # importing this module must not end the process
    program()

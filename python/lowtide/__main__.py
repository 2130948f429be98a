"""`python -m lowtide`: the command line."""

from lowtide.cli.main import program

if __name__ == "__main__":  # else it would end a process that only imports all modules
    program()

"""`python -m lmcompose` is the `lmcompose` command."""

from lmcompose.cli.main import run

if __name__ == "__main__":
    run()

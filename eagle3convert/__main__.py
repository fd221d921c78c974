"""`python -m eagle3convert` is the command line."""

from eagle3convert.cli import run

run()

"""`python -m leakscope`."""

from leakscope.cli import main

main()

"""`python -m bayesemble` is the command line."""

from bayesemble.cli import main

main()

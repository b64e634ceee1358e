"""`python -m bayesemble` is the command line."""

from bayesemble.apps.cli.main import main

main()

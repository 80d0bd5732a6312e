"""`python -m automation.cli` is `herdsman`."""

from automation.cli.main import main

main()

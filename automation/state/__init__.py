"""Lists, moves, saves, restores and checks whole state backends. Called by `automation.cli.state`."""

"""What is done to a whole state backend: listed, moved, saved, restored, checked. Called by `automation.cli.state`."""

"""Output of commands: text from other sources, and the results of checks."""

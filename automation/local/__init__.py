"""One machine without a cluster: agent and gateway in one process, with YAML files of a folder as the desired state.

`running` is that process, `applying` the one that applies the folder, `place` the machine as the everyday commands see
it, `automation.cli.local` the commands.
"""

"""The package `herdsman-agent`: what a host's agent imports, without Pulumi and the package `kubernetes`."""

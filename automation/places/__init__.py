"""Where the everyday commands (`deploy`, `chat`, `list`, …) work: a cluster, or this machine alone."""

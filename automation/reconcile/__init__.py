"""One pass over one service: observe what exists, work out what is desired, compare, remove."""

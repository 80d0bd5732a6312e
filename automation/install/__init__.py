"""What an installation in a cluster consists of, and how it gets there: one source for `install`, docs and chart."""

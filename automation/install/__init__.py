"""The parts of an installation, and how they are applied: one source for `install`, docs and chart."""

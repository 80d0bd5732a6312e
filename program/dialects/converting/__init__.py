"""Converts services between dialects. `herdsman convert` calls it.

Each dialect has a reader, which makes a `Description` of a custom resource, and a writer, which makes custom resources
of a description. Each field that a reader or a writer does not support is listed as a loss, with its path.
"""

"""Converts services between dialects. `herdsman convert` calls it.

Each dialect has a reader, which builds a `Description` from a custom resource, and a writer, which builds custom
resources from a description. Each field that a reader or a writer does not support is listed as a loss, with its path.
"""

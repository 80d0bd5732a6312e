"""A static fleet: from a stack's config and its manifests to the services that `program.fleet` registers."""

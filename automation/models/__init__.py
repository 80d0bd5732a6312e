"""Models: probes of their sources, prefetch Jobs, running downloads, and the contents of caches."""

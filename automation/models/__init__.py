"""Models: what is known of their sources, prefetch, downloads under way, what lies in the caches."""

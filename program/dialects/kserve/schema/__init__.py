"""KServe's kinds, field by field as KServe publishes them."""

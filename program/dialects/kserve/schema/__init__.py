"""KServe's kinds. The fields are the same as in KServe's CRDs."""

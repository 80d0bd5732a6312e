"""Examples: each numbered folder is a set of manifests that a test applies; `demo.py` is `make demo`."""

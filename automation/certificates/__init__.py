"""Issues and renews the certificates of services' pods, and restores deleted ones."""

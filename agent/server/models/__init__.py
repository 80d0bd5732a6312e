"""Models on a host: downloads, verification, the size limit of the store, and the headers of GGUF files."""

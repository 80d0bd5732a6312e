"""The catalog of models: entries as data, the variant that fits a place, and the documents that deploy it."""

"""CustomResourceDefinitions and their schemas, and the parsing of custom resources with these schemas."""

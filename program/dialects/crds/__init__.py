"""CustomResourceDefinitions and the schemas they are made of; custom resources read by their schema."""

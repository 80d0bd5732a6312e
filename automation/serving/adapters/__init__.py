"""Loads the adapters of LoRAAdapters into the replicas of their services, and removes them at a deletion."""

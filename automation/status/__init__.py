"""Writes the status of custom resources and the Events about them."""

"""Finds the fields and objects of services that other clients changed or deleted, and decides what to do."""

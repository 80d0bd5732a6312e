"""Measurements of the loop against limits and, if one is given, against a peer controller. See README.md."""

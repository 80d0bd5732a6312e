"""Measurements of the loop against limits and, optionally, against another controller. See README.md."""

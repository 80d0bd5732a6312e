"""Conditions that services of every dialect have, and why pods do not serve."""

"""The operator: the loop that watches, plans, runs the engine and reports, and the commands.

Start with `controller.py`.
"""

"""When things happen: the loop that watches, plans, runs the engine and reports. Start with `controller.py`."""

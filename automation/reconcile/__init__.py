"""The steps of one pass over one service: observe, desire, review, decide, act, report."""

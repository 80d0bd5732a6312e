"""Services that use the same GPUs by turns (ModelPool): the rules, the members, the demand, and the controller."""

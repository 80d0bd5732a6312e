"""Takes services over from a controller of the same objects, and gives them back, without a restart of their pods."""

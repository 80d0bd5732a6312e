"""Whose consent a change needs before it is made: that of the policies in force, and in mode Preview somebody's."""

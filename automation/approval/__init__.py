"""Decides whether a change may be made: policies in force, and the modes Preview and Paused."""

"""Notices what others changed or deleted of what was made for a service, and decides what is done about it."""

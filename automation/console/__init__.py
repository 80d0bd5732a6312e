"""What commands print of text that others wrote, and of what a check found."""

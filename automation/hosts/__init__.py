"""Machines that run services as processes: whether they live, what they are told, what is said of them."""

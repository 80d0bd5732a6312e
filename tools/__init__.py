"""The programs Herdsman runs beside itself: where they are, how they are built, and a local cluster made of them."""

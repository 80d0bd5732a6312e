"""Programs that Herdsman runs besides itself: where they are, how they are built, and a local cluster made of them."""

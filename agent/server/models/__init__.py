"""Models on a host: fetched once, verified, kept within the store's size; headers read before and after."""

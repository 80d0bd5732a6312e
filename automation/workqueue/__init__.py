"""The queue of keys that the workers take, and when a key comes back: back-off, debounce, periodic resync."""

"""The queue of keys for the workers, and the timers that enqueue keys: back-off, debounce, periodic resync."""

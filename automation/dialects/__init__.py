"""The dialects as the loop sees them: `port` says what it asks of one, the other modules answer."""

"""Commands that start long-running processes: `up`, `supervisor` and `server`."""

"""Remote breakpoints: the hook in jobs, and the relay between it and the supervisor."""

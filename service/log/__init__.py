"""The log of the server processes: the sink in a separate thread, and session files."""

"""The engine around the core: makes decisions durable, executes them, and publishes events."""

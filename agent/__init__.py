"""The agent: connection to the supervisor, session (pure), keeper, samples, workers.

Needs only tornado, msgpack and msgspec.
"""

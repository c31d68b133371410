"""Requests and answers of the client as values, without I/O."""

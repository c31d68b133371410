"""Connections to the supervisor: address, HTTP, retries, file transfer."""

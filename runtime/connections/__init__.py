"""Connections: an HTTP server with deadlines and per-peer limits, and the unix user of a local
peer.
"""

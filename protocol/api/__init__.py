"""Requests of the HTTP API, the expansion of job arrays, and tickets for event streams. Shapes and
pure functions only; `supervisor/api` answers the requests.
"""

"""Handlers of the routes: they validate a request, call the supervisor, and shape its reply for
pages.
"""

"""Requests of the HTTP API and the expansion of job arrays. Shapes and pure functions only;
`supervisor/api` answers the requests.
"""

"""The Python client of the supervisor: `client.http.Client` (plain calls) and
`client.asynchronous.AsyncClient` (tornado).

Nothing is imported here, so that the plain client does not load tornado and a command that needs no
client loads neither.
"""

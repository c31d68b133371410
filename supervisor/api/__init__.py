"""The supervisor's HTTP API for front ends and the command line: JSON bodies, one shared secret.

`routes` lists the addresses, `endpoints` has the handlers, and `transport` has authentication,
limits and error responses. Handlers parse, call a service and write the answer; decisions are in
`core`.
"""

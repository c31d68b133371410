"""Access to a login node as a user: the channel that runs commands there, the code sent there, and
the requests to `agent/login_node`.
"""

"""Access to a login node as a user: the channel that runs commands, the code that is sent to the
node, and the requests to `agent/login_node`.
"""

"""Sign-in to clusters by ssh with asyncssh: credentials, the authentication dialog, pinned host
keys, and the resulting channel.
"""

"""What `jobscribe bundle` puts together: parts by the supervisor's interface, files where they can
be read, all without secrets.
"""

"""The front door: a Flask blueprint that browsers talk to, the small application that `jobscribe server` serves, and the proxy of `up`.

Talks to the supervisor over HTTP only. Nothing about runs is decided here.
"""

from .blueprint import create_blueprint

__all__ = ["create_blueprint"]

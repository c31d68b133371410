"""The router of a site with shards: it finds the shard of each request's user, and forwards the request.
It keeps no state; see etc/adr/0049-shards.md.
"""

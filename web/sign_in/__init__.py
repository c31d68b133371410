"""Sign-in of people at the front end: OpenID Connect, PAM, sessions, and approval of device logins.

The settings choose one way; a site with a user hook or a proxy's header uses the approval only.
"""

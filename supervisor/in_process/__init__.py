"""A supervisor and its agent in the process of their only client, without sockets and threads of
their own: the events are in memory and end with the process.

Core, engine, codec, hub, run service, routes and the agent's session are those of a site. The agent
hands jobs to its client's `Runner`, outside of the event loop.
"""

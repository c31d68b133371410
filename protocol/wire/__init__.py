"""Messages between supervisor and agents, their binary encoding, the handshake header and the
heartbeat. No sockets; `supervisor/connections` and `agent/session` own those.
"""

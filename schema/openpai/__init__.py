"""Job configurations of OpenPAI, version 1 and protocol version 2: their keys and checks, and their
conversion to a job description (`schema.jobs`). Pure; nothing behind the conversion knows them.
"""

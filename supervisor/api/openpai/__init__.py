"""OpenPAI's REST interface, `/api/v1` and parts of `/api/v2`, on top of the services of the API.

Names, states and error codes are OpenPAI's here and nowhere else. No decision is made here.
"""

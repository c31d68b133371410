"""`trace`: any id leads to the job or agent that it belongs to, and to all that is known of its
way. See `lookup`, `timeline`, `gaps`.
"""

"""Values that describe a job: status, task roles, exit information and progress reports. No
decision is made here; `supervisor/core` decides.
"""

"""Job descriptions: keys of a job, of its roles, containers and cluster requests, with their
validation. The supervisor checks what exists at the site.
"""

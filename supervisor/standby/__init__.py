"""A supervisor that stands by while another one has the lease of the site. It decides nothing about
runs; see etc/adr/0046-standby-supervisors.md.
"""

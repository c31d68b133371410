"""Resources: nodes, ports, subnets and concurrency limits, and how runs wait for and hold them.
Data and functions on it, independent of the world.
"""

"""jobscribe: a durable job broker. Import what you need from its folders; this file holds nothing
else.
"""

"""The far end: link, session (pure), keeper, adoption, samples. Runs with tornado, msgpack, msgspec
and psutil alone.
"""

"""`jobscribe db`: commands that work on the event store of a root directly, without its supervisor."""

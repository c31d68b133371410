"""`jobscribe db`: commands that open the event store of a root without its supervisor."""

"""`jobscribe job files`, `job get` and `job put`."""

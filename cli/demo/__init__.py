"""`jobscribe demo`: a real computation on a temporary supervisor, from submission to result."""

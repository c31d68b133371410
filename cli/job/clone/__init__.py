"""`jobscribe job clone`: a new job from the definition of an earlier one, perhaps edited."""

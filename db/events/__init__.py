"""Events that are stored, and the pure folds that turn them into jobs and agents. No I/O."""

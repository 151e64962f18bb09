"""Many runs, a few at a time."""

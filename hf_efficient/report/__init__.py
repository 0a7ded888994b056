"""Records in, something to look at out; computes nothing."""

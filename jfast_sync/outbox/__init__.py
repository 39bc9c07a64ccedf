"""Messages written in the caller's transaction: they exist if and only if it commits."""

"""Where jobs read."""

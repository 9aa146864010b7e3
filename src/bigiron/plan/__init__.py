"""What should be on a host, and why: pure functions of (machine, model, intent)."""

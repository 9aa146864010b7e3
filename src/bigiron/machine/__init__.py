"""What a machine is, and the host-side reader that says so. Imports nothing: this file also runs on hosts."""

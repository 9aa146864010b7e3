"""What a host should look like, what it does look like, and the difference. Imports nothing: this file also runs on hosts."""

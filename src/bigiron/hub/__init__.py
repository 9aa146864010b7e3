"""The Hugging Face hub: what a repository holds, and fetching it."""

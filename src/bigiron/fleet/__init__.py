"""The controller's reach: which hosts there are, and how to talk to them."""

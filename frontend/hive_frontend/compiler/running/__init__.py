"""What compiled code calls while it runs."""

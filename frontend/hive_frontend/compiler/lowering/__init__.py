"""From a function's syntax to one whose awaits are statements of their own."""

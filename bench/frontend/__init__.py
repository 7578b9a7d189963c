"""What the frontend itself costs, with a model that costs nothing."""

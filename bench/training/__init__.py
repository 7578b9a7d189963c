"""Training: what LoRA adapters of the embedded model learn as roles, and how."""

"""Small models for roles: what LoRA adapters of the embedded model are trained on, and how."""

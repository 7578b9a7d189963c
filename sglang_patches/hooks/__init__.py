"""Hooks, each in a module named after the upstream module; :mod:`sglang_patches.contract.patches` lists them all."""

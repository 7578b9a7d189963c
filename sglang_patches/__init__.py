"""Everything that touches SGLang: hooks, one module per upstream module, listed in
:mod:`sglang_patches.contract.patches`.
"""

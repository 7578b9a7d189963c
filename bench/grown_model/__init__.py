"""A small model at a large one's cost: the embedded model, grown, so that it still computes the same function.

What a server saves with a real, sure model can then be timed where computing is dear, without an 8B checkpoint.
``python -m bench.grown_model OUT --preset llama-8b`` writes it; ``docs/benchmarks.md`` says why it computes the same.

- :mod:`~bench.grown_model.geometry`: sizes of models, presets, and what fits into what;
- :mod:`~bench.grown_model.grower`: large matrices of small ones, for layers and for LoRA adapters;
- :mod:`~bench.grown_model.folder`: model folders, read and written a few layers at a time.
"""

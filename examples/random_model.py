"""The random baseline: a model that draws each answer from the choices of its request."""

from __future__ import annotations

import random

from hive_frontend import Request
from hive_frontend.client import sample_seed
from hive_frontend.testing import FunctionModel


def random_model(otherwise: str = "nothing of use") -> FunctionModel:
    """The same request, the same answer; one without choices is answered with `otherwise`."""

    def draw(request: Request) -> str:
        choices = request.sampling.choices
        return (
            random.Random(sample_seed(request.seed, request.sample)).choice(choices) if choices else otherwise
        )

    return FunctionModel(draw)

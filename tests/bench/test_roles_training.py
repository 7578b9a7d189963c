"""Training an adapter and asking it, on a model of a few thousand weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
peft = pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from bench.roles.example import Example  # noqa: E402
from bench.roles.lora import Settings, answer_entropies, answer_logprobs, encode, save, train  # noqa: E402
from bench.roles.quiz import Question, grade  # noqa: E402


class Letters:
    """A tokenizer with a token for each character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) % 64 for letter in text]


TOKENIZER = Letters()
LESSONS = [Example(f"{letter}:", (letter.upper(),)) for letter in "abcd"]
SETTINGS = Settings(steps=120, batch=4, rate=2e-2, rank=4)


def tiny_model() -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        # Else the frozen output layer is so small that no adapter could make anything likely.
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config).eval()


def quiet(text: str) -> None:
    assert text


@pytest.fixture(scope="module")
def trained() -> tuple[Any, list[float]]:
    return train(tiny_model(), TOKENIZER, LESSONS, SETTINGS, quiet)


QUESTIONS = [Question(f"{letter}:", ("A", "B", "C", "D"), frozenset([letter.upper()])) for letter in "abcd"]


def test_lessons_are_learned_and_the_base_is_left_alone(trained: tuple[Any, list[float]]) -> None:
    model, losses = trained
    assert len(losses) == SETTINGS.steps
    assert losses[-1] < 0.2 < 2 < losses[0]
    weights = {
        name: value for name, value in model.get_base_model().state_dict().items() if "lora" not in name
    }
    fresh = tiny_model().state_dict()
    assert len(weights) == len(fresh)
    for name, value in weights.items():
        assert torch.equal(value, fresh[name.replace("base_layer.", "")]), name
    before, after = grade(tiny_model(), TOKENIZER, QUESTIONS), grade(model, TOKENIZER, QUESTIONS)
    assert before.chance == after.chance == 0.25
    assert before.right < 0.5 < 0.9 < after.right
    assert after.first == 1
    assert after.entropy_nats < before.entropy_nats
    assert after.token_entropy_nats < before.token_entropy_nats


def test_the_same_seed_trains_the_same_adapter(trained: tuple[Any, list[float]]) -> None:
    _, losses = train(tiny_model(), TOKENIZER, LESSONS, SETTINGS, quiet)
    assert losses == trained[1]


def test_several_right_answers_share_the_probability() -> None:
    model, _ = train(tiny_model(), TOKENIZER, [Example("x:", ("A", "B"))], SETTINGS, quiet)
    pairs = [([*TOKENIZER.encode("x:", add_special_tokens=False)], [ord(letter) % 64]) for letter in "AB"]
    with torch.inference_mode():
        chances = answer_logprobs(model, pairs, torch.device("cpu")).exp()
    assert chances.sum() > 0.75
    assert chances.min() > 0.2


def test_chances_and_entropies_are_those_of_the_model() -> None:
    model = tiny_model()
    pairs = [([1, 2, 3], [4, 5]), ([7], [8]), ([9, 10], [11, 12, 13])]
    with torch.inference_mode():
        chances = answer_logprobs(model, pairs, torch.device("cpu"))
        entropies = answer_entropies(model, pairs, torch.device("cpu"))
        expected, expected_entropies = [], []
        for prompt, answer in pairs:
            logprobs = model(torch.tensor([[*prompt, *answer]])).logits[0].log_softmax(-1)
            places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
            expected.append(sum(logprobs[place, token] for place, token in zip(places, answer, strict=True)))
            expected_entropies += [torch.special.entr(logprobs[place].exp()).sum() for place in places]
    torch.testing.assert_close(chances, torch.stack(expected))
    torch.testing.assert_close(entropies, torch.stack(expected_entropies))


def test_what_is_saved_is_a_peft_adapter_without_folders(
    trained: tuple[Any, list[float]], tmp_path: Path
) -> None:
    model, _ = trained
    before = grade(model, TOKENIZER, QUESTIONS)
    save(model, tmp_path, "some/base")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    assert (
        json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"] == "some/base"
    )
    loaded = peft.PeftModel.from_pretrained(tiny_model(), tmp_path)
    after = grade(loaded, TOKENIZER, QUESTIONS)
    assert after.right == pytest.approx(before.right, abs=0.02)


def test_without_lessons_there_is_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="there are no lessons"):
        train(tiny_model(), TOKENIZER, [], SETTINGS, quiet)


def test_prompt_and_answers_are_tokenised_apart() -> None:
    encoded = encode(TOKENIZER, Example("ab", ("c", "de")))
    assert encoded.prompt == [33, 34]
    assert encoded.answers == [[35], [36, 37]]

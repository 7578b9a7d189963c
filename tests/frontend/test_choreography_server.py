"""Prompt Choreography from programs, against the real server with the real small model."""

from __future__ import annotations

import pytest
from hive_frontend import (
    BestOfN,
    CachedMessage,
    HttpClient,
    ModelError,
    Piece,
    Session,
    TextMessages,
    agent,
    decode,
    gather,
    gen,
    prefill,
    run,
    score,
)

from hive.server.server_process import ServerProcess

pytestmark = pytest.mark.server


def turn(role: str, text: str) -> str:
    """A turn of the model's chat template. Special tokens at both ends: texts in a row are tokenized one by one."""
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


HEADER = "<|im_start|>assistant\n"
CAPITALS = [
    turn("user", f"The capital of {land} is {town}.") for land, town in (("Peru", "Lima"), ("Oman", "Muscat"))
]


async def test_a_dialogue_of_messages_is_the_dialogue(kv_server: ServerProcess) -> None:
    """Where each message sees all before it, nothing is approximate: the answers are those of ordinary requests."""

    async def talk() -> list[CachedMessage]:
        said = [await prefill(turn("user", "What is the capital of France?"))]
        said.append(await decode(HEADER, parents=said, max_tokens=12, temperature=0))
        said.append(await prefill("<|im_end|>\n" + turn("user", "And of Italy?"), parents=said))
        return [*said, await decode(HEADER, parents=said, max_tokens=12, temperature=0)]

    client = HttpClient(kv_server.url, replay="off")
    async with Session(client):
        kept = await talk()
    async with Session(TextMessages(client)):
        texts = await talk()
    await client.aclose()
    assert [message.text for message in kept] == [message.text for message in texts]
    ends = [message.end for message in kept]
    assert [message.offset for message in kept] == [0, *ends[:-1]]
    assert kept[-1].kv.exact + kept[-1].kv.placed == ends[-2]
    assert (kept[-1].kv.recomputed, kept[-1].kv.missing) == (0, 0)


async def test_documents_are_placed_in_any_order(kv_server: ServerProcess) -> None:
    client = HttpClient(kv_server.url, replay="off")
    question = turn("user", "What is the capital of Oman?")
    async with Session(client, seed=1):
        docs = await gather(*map(prefill, CAPITALS))
        asked = await prefill(question)
        assert [doc.offset for doc in docs] == [0, 0]
        context = sum(message.tokens for message in (*docs, asked))
        for order in docs, docs[::-1]:
            answer = await decode(HEADER, parents=[*order, asked], max_tokens=8, temperature=0)
            assert answer.offset == context
            assert answer.end == answer.offset + answer.tokens
            assert answer.kv.exact + answer.kv.placed == context
            assert (answer.kv.recomputed, answer.kv.missing) == (0, 0)
        apart = await decode(
            HEADER, parents=[*docs, asked], offsets=[None, 200, 100], new_offset=400, max_tokens=4
        )
        assert apart.offset == 400
        exact = await decode(
            HEADER, parents=[*docs[::-1], asked], max_tokens=8, temperature=0, corrector="recompute-all"
        )
        assert exact.kv.recomputed > 0
    async with Session(TextMessages(client)):
        texts = [await prefill(text) for text in (*CAPITALS[::-1], question)]
        whole = await decode(HEADER, parents=texts, max_tokens=8, temperature=0)
    await client.aclose()
    assert exact.text == whole.text, "all computed again is the ordinary request"


@agent(supervisor=BestOfN(4, at="answer"), name="choreographer")
async def guess(question: str) -> tuple[str, str]:
    system = await prefill(turn("system", "You guess numbers."))
    asked = await prefill(turn("user", question), parents=[system])
    answer = await decode(
        HEADER, parents=[system, asked], regex="[0-9]{3}", max_tokens=6, temperature=1.0, name="answer"
    )
    score(int(answer.text))
    again = await decode(HEADER, parents=[answer, system], max_tokens=6, temperature=0.7)
    return str(answer.text), str(again.text)


def test_a_search_draws_other_answers_behind_the_same_messages(kv_server: ServerProcess) -> None:
    # One at a time: batches of other sizes round differently, and sampled tokens may drift.
    first = run(guess, "Which number?", model=kv_server.url, seed=4, max_concurrency=1)
    answers = [answer for answer, _ in (found.value for found in first.results)]
    assert len(set(answers)) > 1
    assert first.value is not None
    assert first.value[0] == max(answers)
    assert first.totals.requests == 2 + 4 + 4
    assert first.totals.tokens_generated > 0
    again = run(guess, "Which number?", model=kv_server.url, seed=4, max_concurrency=1)
    assert again.results == first.results
    together = run(guess, "Which number?", model=kv_server.url, seed=4)
    assert len(together.results) == 4


async def test_pieces_of_decodes_that_go_out_together(kv_server: ServerProcess) -> None:
    pieces: list[Piece] = []
    async with Session(kv_server.url, on_piece=pieces.append):
        doc = await prefill(CAPITALS[0])
        made = await gather(
            *[decode(HEADER, parents=[doc], max_tokens=10, temperature=0.9) for _ in range(3)]
        )
    for part, message in enumerate(made):
        assert "".join(piece.text for piece in pieces if piece.part == str(part)) == message.text
    assert len(pieces) > 6
    assert len({message.id for message in made}) == 3


async def test_messages_end(kv_server: ServerProcess) -> None:
    client = HttpClient(kv_server.url)
    async with Session(client):
        doc = await prefill(CAPITALS[0])
        other = HttpClient(kv_server.url, tenant="other")
        async with Session(other):
            with pytest.raises(ModelError, match="must be the id of an existing message") as caught:
                await decode(HEADER, parents=[doc], max_tokens=2)
            assert caught.value.status == 400
        await other.aclose()
        gone = await prefill(CAPITALS[1], parents=[doc])
        last = await decode(HEADER, parents=[doc, gone], max_tokens=2)
        await gone.delete()
        await gone.delete()
        with pytest.raises(ModelError, match="must be the id of an existing message"):
            await decode(HEADER, parents=[gone], max_tokens=2)
        assert (await decode(HEADER, parents=[last], max_tokens=2)).tokens > 0, "what was made with it stays"
    async with Session(client):
        with pytest.raises(ModelError, match="must be the id of an existing message"):
            await prefill("x", parents=[doc])
    await client.aclose()


async def test_ordinary_calls_are_not_touched(kv_server: ServerProcess) -> None:
    client = HttpClient(kv_server.url, replay="off")

    async def ask() -> str:
        async with Session(client, seed=1):
            return str(await gen("The capital of Oman?", max_tokens=8, temperature=0))

    before = await ask()
    async with Session(client):
        doc = await prefill(turn("user", "The capital of Oman?"))
        await decode(HEADER, parents=[await prefill(CAPITALS[1]), doc], max_tokens=8, temperature=0)
        assert await ask() == before
    assert await ask() == before
    await client.aclose()


async def test_without_its_flag_a_server_names_it(server: ServerProcess) -> None:
    client = HttpClient(server.url)
    async with Session(client):
        for call in prefill("x"), decode("x"):
            with pytest.raises(ModelError, match="--hive-kv-segments"):
                await call
    await client.aclose()

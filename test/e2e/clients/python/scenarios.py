"""Scenarios of the openai package against a Tandem frontend.

usage: scenarios.py BASE_URL MODEL

Prints a line for each scenario and exits with 1 if one fails.
"""

import json
import sys
import traceback

import openai

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ANSWER = "The capital of France is Paris."


def chat(client, model):
    r = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=20)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-"), r
    assert r.choices[0].message.role == "assistant", r
    assert r.choices[0].message.content == ANSWER, r
    assert r.choices[0].finish_reason == "stop", r
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens, r
    assert r.usage.prompt_tokens_details.cached_tokens >= 0, r
    text = client.completions.create(model=model, prompt="1, 2, 3, 4,", temperature=0, max_tokens=4)
    assert text.object == "text_completion" and text.choices[0].text, text
    assert text.choices[0].finish_reason == "length" and text.usage.completion_tokens == 4, text


def stream(client, model):
    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=20, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant", chunks[0]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == ANSWER, chunks
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["stop"], chunks
    assert len({c.id for c in chunks}) == 1 and len(chunks) > 3, chunks
    assert all(c.usage is None for c in chunks), chunks


def usage_in_last_chunk(client, model):
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=20)
    chunks = list(client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=20, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage, chunks[-1]
    assert all(c.usage is None for c in chunks[:-1]), chunks
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert getattr(chunks[-1].usage, field) == getattr(whole.usage, field), (chunks[-1], whole)


def stop(client, model):
    r = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=20, stop=["rance is"])
    assert r.choices[0].message.content == "The capital of F", r
    assert r.choices[0].finish_reason == "stop", r
    chunks = list(client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=20, stop="rance is", stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == "The capital of F", chunks


def seed(client, model):
    def once(n):
        return client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Tell me a tale."}], temperature=1.2, seed=n, max_tokens=16
        ).choices[0].message.content

    first = once(7)
    assert once(7) == first
    assert any(once(n) != first for n in (8, 9, 10))


def logprobs(client, model):
    r = client.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=20, logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    assert len(entries) == r.usage.completion_tokens, r
    for e in entries:
        assert e.logprob <= 0 and len(e.top_logprobs) == 3 and e.top_logprobs[0].token == e.token, e
    assert bytes(b for e in entries[:-1] for b in e.bytes).decode() == ANSWER, entries
    text = client.completions.create(model=model, prompt="Water is", temperature=0, max_tokens=3, logprobs=2)
    lp = text.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 3, lp
    assert "".join(lp.tokens) == text.choices[0].text, text


def error_objects(client, model):
    def refused(kind, status, param, **body):
        try:
            client.chat.completions.create(**{"model": model, "messages": QUESTION, **body})
        except kind as e:
            assert e.status_code == status and e.param == param and e.body["message"], (e.body, e.status_code)
            assert e.type == "invalid_request_error", e.type
            return
        raise AssertionError(f"{body} was accepted")

    refused(openai.BadRequestError, 400, "messages", messages=[])
    refused(openai.BadRequestError, 400, "temperature", temperature=9)
    refused(openai.BadRequestError, 400, "max_tokens", max_tokens=0)
    refused(openai.BadRequestError, 400, "n", n=129)
    refused(openai.NotFoundError, 404, "model", model="no-such-model")


def abort_in_mid_stream(client, model):
    seen = 0
    with client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Count to a thousand."}], temperature=0, max_tokens=2000, stream=True,
        extra_body={"ignore_eos": True},
    ) as s:
        for chunk in s:
            seen += 1
            if seen == 5:
                break
    assert seen == 5
    chat(client, model)


def multi_turn(client, model):
    # Whole blocks of the history come from the cache at each further turn.
    messages = [{"role": "user", "content": "My name is Ada and I live in a small house near the river. Say hello to me."}]
    cached = []
    for question in ("What is my name?", "Where do I live?", None):
        r = client.chat.completions.create(
            model=model, messages=messages, temperature=0, max_tokens=24, extra_headers={"X-Session-ID": "ada-1"})
        cached.append(r.usage.prompt_tokens_details.cached_tokens)
        messages.append({"role": "assistant", "content": r.choices[0].message.content})
        if question:
            messages.append({"role": "user", "content": question})
    assert cached[1] > 16 and cached[2] > cached[1], cached


def models_list(client, model):
    assert model in [m.id for m in client.models.list()]
    assert client.models.retrieve(model).id == model
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError:
        return
    raise AssertionError("an unknown model was found")


def choices(client, model):
    def ask(**more):
        return client.chat.completions.create(**{
            "model": model, "messages": [{"role": "user", "content": "Tell me a tale."}],
            "temperature": 1.2, "seed": 7, "max_tokens": 12, "n": 3, **more})

    whole = ask(logprobs=True)
    texts = [c.message.content for c in whole.choices]
    assert [c.index for c in whole.choices] == [0, 1, 2] and len(set(texts)) == 3, whole
    assert sum(len(c.logprobs.content) for c in whole.choices) == whole.usage.completion_tokens, whole
    one = ask(n=1)
    assert one.choices[0].message.content == texts[0] and one.usage.prompt_tokens == whole.usage.prompt_tokens, (one, whole)
    streamed, ends, roles, order = ["", "", ""], {}, [], []
    for chunk in ask(stream=True, stream_options={"include_usage": True}):
        for c in chunk.choices:
            order.append(c.index)
            streamed[c.index] += c.delta.content or ""
            if c.delta.role:
                roles.append(c.index)
            if c.finish_reason:
                ends[c.index] = c.finish_reason
        usage = chunk.usage
    assert streamed == texts and sorted(roles) == [0, 1, 2] and len(ends) == 3, (streamed, texts, roles, ends)
    assert order != sorted(order), order
    assert usage.completion_tokens == whole.usage.completion_tokens and usage.prompt_tokens == whole.usage.prompt_tokens, usage
    greedy = ask(temperature=0)
    assert len({c.message.content for c in greedy.choices}) == 1, greedy
    best = client.completions.create(model=model, prompt="Once upon a time", temperature=1, seed=3, max_tokens=8, n=2, best_of=4)
    assert len(best.choices) == 2 and best.usage.completion_tokens == 32, best


def tools(client, model):
    weather = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}}}
    now = {"type": "function", "function": {"name": "now"}}
    messages = [{"role": "user", "content": "What will the weather be in Rome?"}]

    def ask(**more):
        return client.chat.completions.create(
            model=model, messages=messages, tools=[weather, now], temperature=0, max_tokens=200, **more)

    for choice in ({"type": "function", "function": {"name": "weather"}}, "required"):
        whole = ask(tool_choice=choice, parallel_tool_calls=False).choices[0]
        call = whole.message.tool_calls[0]
        assert whole.finish_reason == "tool_calls" and whole.message.content is None and call.id and call.type == "function", whole
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            assert arguments["city"] in ("Paris", "Rome") and 1 <= arguments["days"] <= 9, arguments
        else:
            assert call.function.name == "now" and arguments == {}, whole
        got = {"arguments": ""}
        for chunk in ask(tool_choice=choice, parallel_tool_calls=False, stream=True):
            for piece in chunk.choices[0].delta.tool_calls or []:
                assert piece.index == 0, piece
                got["id"] = piece.id or got.get("id")
                got["name"] = piece.function.name or got.get("name")
                got["arguments"] += piece.function.arguments
            finish = chunk.choices[0].finish_reason
        assert got["id"] and got["name"] == call.function.name and got["arguments"] == call.function.arguments and finish == "tool_calls", (got, whole)
    messages += [{"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}, {"role": "tool", "tool_call_id": call.id, "content": "Rain."}]
    assert ask(tool_choice="none").choices[0].message.content


SCENARIOS = [choices, tools, chat, stream, usage_in_last_chunk, stop, seed, logprobs, error_objects, abort_in_mid_stream, multi_turn, models_list]


def main():
    base, model = sys.argv[1:]
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=120)
    failed = 0
    for scenario in SCENARIOS:
        try:
            scenario(client, model)
            print("ok  ", scenario.__name__)
        except Exception:
            failed += 1
            print("FAIL", scenario.__name__)
            traceback.print_exc(file=sys.stdout)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

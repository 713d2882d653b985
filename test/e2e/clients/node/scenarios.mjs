// Scenarios of the openai package against a Tandem frontend.
//
// usage: node scenarios.mjs BASE_URL MODEL
//
// Prints a line for each scenario and exits with 1 if one fails. The package is
// found from the folder in TANDEM_CLIENT_FOLDER.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { join } from 'node:path';

const require = createRequire(join(process.env.TANDEM_CLIENT_FOLDER, 'package.json'));
const OpenAI = require('openai').default ?? require('openai');

const [base, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: 'none', maxRetries: 0, timeout: 120_000 });

const question = [{ role: 'user', content: 'What is the capital of France?' }];
const answer = 'The capital of France is Paris.';
const ask = (more = {}, options = {}) =>
  client.chat.completions.create({ model, messages: question, temperature: 0, max_tokens: 20, ...more }, options);

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}
const textOf = (chunks) => chunks.map((c) => c.choices[0]?.delta?.content ?? '').join('');

async function chat() {
  const r = await ask();
  assert.equal(r.object, 'chat.completion');
  assert.equal(r.choices[0].message.role, 'assistant');
  assert.equal(r.choices[0].message.content, answer);
  assert.equal(r.choices[0].finish_reason, 'stop');
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
  const text = await client.completions.create({ model, prompt: '1, 2, 3, 4,', temperature: 0, max_tokens: 4 });
  assert.equal(text.object, 'text_completion');
  assert.equal(text.choices[0].finish_reason, 'length');
  assert.equal(text.usage.completion_tokens, 4);
}

async function stream() {
  const chunks = await collect(await ask({ stream: true }));
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(textOf(chunks), answer);
  assert.deepEqual(chunks.map((c) => c.choices[0].finish_reason).filter(Boolean), ['stop']);
  assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
  // The helper of the package puts a stream together by itself.
  const final = await client.chat.completions
    .stream({ model, messages: question, temperature: 0, max_tokens: 20 })
    .finalChatCompletion();
  assert.equal(final.choices[0].message.content, answer);
}

async function usageInLastChunk() {
  const whole = await ask();
  const chunks = await collect(await ask({ stream: true, stream_options: { include_usage: true } }));
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  for (const field of ['prompt_tokens', 'completion_tokens', 'total_tokens']) assert.equal(last.usage[field], whole.usage[field]);
  assert.ok(chunks.slice(0, -1).every((c) => !c.usage));
}

async function stop() {
  const r = await ask({ stop: ['rance is'] });
  assert.equal(r.choices[0].message.content, 'The capital of F');
  assert.equal(r.choices[0].finish_reason, 'stop');
  assert.equal(textOf(await collect(await ask({ stop: 'rance is', stream: true }))), 'The capital of F');
}

async function seed() {
  const once = async (n) => {
    const messages = [{ role: 'user', content: 'Tell me a tale.' }];
    return (await ask({ messages, temperature: 1.2, seed: n, max_tokens: 16 })).choices[0].message.content;
  };
  const first = await once(7);
  assert.equal(await once(7), first);
  assert.ok((await Promise.all([8, 9, 10].map(once))).some((t) => t !== first));
}

async function logprobs() {
  const r = await ask({ logprobs: true, top_logprobs: 3 });
  const entries = r.choices[0].logprobs.content;
  assert.equal(entries.length, r.usage.completion_tokens);
  for (const e of entries) {
    assert.ok(e.logprob <= 0);
    assert.equal(e.top_logprobs.length, 3);
    assert.equal(e.top_logprobs[0].token, e.token);
  }
  assert.equal(Buffer.from(entries.slice(0, -1).flatMap((e) => e.bytes)).toString(), answer);
}

async function errorObjects() {
  const refused = async (kind, status, param, more) => {
    await assert.rejects(ask(more), (e) => {
      assert.ok(e instanceof kind, String(e));
      assert.equal(e.status, status);
      assert.equal(e.param, param);
      assert.equal(e.type, 'invalid_request_error');
      return true;
    });
  };
  await refused(OpenAI.BadRequestError, 400, 'messages', { messages: [] });
  await refused(OpenAI.BadRequestError, 400, 'temperature', { temperature: 9 });
  await refused(OpenAI.BadRequestError, 400, 'max_tokens', { max_tokens: 0 });
  await refused(OpenAI.BadRequestError, 400, 'n', { n: 129 });
  await refused(OpenAI.NotFoundError, 404, 'model', { model: 'no-such-model' });
}

async function abortInMidStream() {
  const messages = [{ role: 'user', content: 'Count to a thousand.' }];
  const s = await ask({ messages, max_tokens: 2000, stream: true, ignore_eos: true });
  let seen = 0;
  for await (const _ of s) {
    if (++seen === 5) s.controller.abort();
    if (seen > 500) break;
  }
  assert.ok(seen < 500, `${seen} chunks after the abort`);
  await chat();
}

async function multiTurn() {
  // Whole blocks of the history come from the cache at each further turn.
  const messages = [{ role: 'user', content: 'My name is Bob and I live in a tall tower by the sea. Say hello to me.' }];
  const cached = [];
  for (const next of ['What is my name?', 'Where do I live?', null]) {
    const r = await ask({ messages, max_tokens: 24 }, { headers: { 'X-Session-ID': 'bob-1' } });
    cached.push(r.usage.prompt_tokens_details.cached_tokens);
    messages.push({ role: 'assistant', content: r.choices[0].message.content });
    if (next) messages.push({ role: 'user', content: next });
  }
  assert.ok(cached[1] > 16 && cached[2] > cached[1], String(cached));
}

async function modelsList() {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(model), String(ids));
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.models.retrieve('no-such-model'), OpenAI.NotFoundError);
}

async function choices() {
  const more = { messages: [{ role: 'user', content: 'Tell me a tale.' }], temperature: 1.2, seed: 7, max_tokens: 12, n: 3 };
  const whole = await ask(more);
  const texts = whole.choices.map((c) => c.message.content);
  assert.deepEqual(whole.choices.map((c) => c.index), [0, 1, 2]);
  assert.equal(new Set(texts).size, 3);
  const streamed = ['', '', ''];
  for (const chunk of await collect(await ask({ ...more, stream: true }))) {
    for (const c of chunk.choices) streamed[c.index] += c.delta.content ?? '';
  }
  assert.deepEqual(streamed, texts);
}

async function tools() {
  const more = {
    messages: [{ role: 'user', content: 'What will the weather be in Rome?' }], max_tokens: 100,
    tools: [{ type: 'function', function: { name: 'weather', parameters: {
      type: 'object', properties: { city: { enum: ['Paris', 'Rome'] } }, required: ['city'], additionalProperties: false } } }],
    tool_choice: { type: 'function', function: { name: 'weather' } },
  };
  const whole = (await ask(more)).choices[0];
  const [call] = whole.message.tool_calls;
  assert.equal(whole.finish_reason, 'tool_calls');
  assert.equal(whole.message.content, null);
  assert.ok(['Paris', 'Rome'].includes(JSON.parse(call.function.arguments).city));
  const final = await client.chat.completions.stream({ model, temperature: 0, ...more }).finalChatCompletion();
  assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  assert.equal(final.choices[0].finish_reason, 'tool_calls');
}

let failed = 0;
for (const scenario of [choices, tools, chat, stream, usageInLastChunk, stop, seed, logprobs, errorObjects, abortInMidStream, multiTurn, modelsList]) {
  try {
    await scenario();
    console.log('ok  ', scenario.name);
  } catch (e) {
    failed++;
    console.log('FAIL', scenario.name);
    console.log(e);
  }
}
process.exit(failed ? 1 : 0);

"""Writes processors.json.gz: logits before and after the logits processors of transformers, for
TestLogitsProcessors. Run it in this folder: python3 make.py"""

import gzip
import json

import torch
from transformers.generation import logits_process as lp

VOCAB = 40
gen = torch.Generator().manual_seed(7)


def rand(scale=3.0):
    return (torch.randn(1, VOCAB, generator=gen) * scale).float()


def ids(n):
    return torch.randint(0, VOCAB, (n,), generator=gen).tolist()


def floats(t):
    return [x if x > -1e30 else None for x in t[0].tolist()]


cases = []


def add(name, prompt, output, sampling, processors, kept=False):
    logits = rand()
    seen = torch.tensor([prompt + output])
    scores = logits.clone()
    for p in processors:
        scores = p(seen, scores)
    cases.append({"name": name, "prompt": prompt, "output": output, "sampling": sampling,
                  "logits": floats(logits), "want": floats(scores), "kept": kept})


for i in range(4):
    prompt, output = ids(6 + i), ids(3 * i)
    add(f"repetition {i}", prompt, output, {"repetition_penalty": 1.0 + 0.3 * (i - 1.5)}, [lp.RepetitionPenaltyLogitsProcessor(1.0 + 0.3 * (i - 1.5))])
    words = [ids(1), ids(2), [prompt[-1], 5], (output or prompt)[-2:] + [9]]
    add(f"bad words {i}", prompt, output, {"bad_words": words}, [lp.NoBadWordsLogitsProcessor(words)])
    add(f"min tokens {i}", prompt, output, {"min_tokens": 4, "eos": [3, 8]}, [lp.MinNewTokensLengthLogitsProcessor(len(prompt), 4, [3, 8])])
    bias = {t: float(v) for t, v in zip(ids(4), [-2.5, 1.25, 50, -100])}
    add(f"bias {i}", prompt, output, {"logit_bias": [[t, v] for t, v in sorted(bias.items())]}, [lp.SequenceBiasLogitsProcessor([[[t], v] for t, v in bias.items()])])
    t = [0.5, 0.8, 1.0, 1.7][i]
    warp = [lp.TemperatureLogitsWarper(t)]
    add(f"top_k {i}", prompt, output, {"temperature": t, "top_k": 3 + i}, warp + [lp.TopKLogitsWarper(3 + i)], True)
    add(f"top_p {i}", prompt, output, {"temperature": t, "top_p": 0.5 + 0.1 * i}, warp + [lp.TopPLogitsWarper(0.5 + 0.1 * i)], True)
    add(f"min_p {i}", prompt, output, {"temperature": t, "min_p": 0.05 + 0.1 * i}, warp + [lp.MinPLogitsWarper(0.05 + 0.1 * i)], True)
    add(f"top_k, top_p {i}", prompt, output, {"temperature": t, "top_k": 8, "top_p": 0.7}, warp + [lp.TopKLogitsWarper(8), lp.TopPLogitsWarper(0.7)], True)
    add(f"all {i}", prompt, output,
        {"repetition_penalty": 1.2, "bad_words": words, "temperature": t, "top_k": 10, "min_p": 0.02},
        [lp.NoBadWordsLogitsProcessor(words), lp.RepetitionPenaltyLogitsProcessor(1.2)] + warp + [lp.TopKLogitsWarper(10), lp.MinPLogitsWarper(0.02)], True)

with gzip.GzipFile("processors.json.gz", "wb", mtime=0) as f:
    f.write(json.dumps(cases).encode())
print(len(cases), "cases")
